//! Session of one client, and the commands by which Redis clients log in and introspect the server.

use std::net::SocketAddr;

use super::CommandName;
use super::encoder::{Excerpt, ReplyBuffer};
use super::parser::CommandLimits;
use crate::app::auth::Auth;

/// Redis version that INFO reports, for clients that check the version.
const REDIS_VERSION: &str = "7.0.0";

/// Maximum length of a client's name, in bytes.
const MAX_NAME: usize = 64;

/// State of one client's connection.
pub(super) struct Session {
    id: u64,
    peer: SocketAddr,
    name: String,
    /// True if the client has sent a valid token, or needs none.
    pub(super) authenticated: bool,
}

/// Action on the connection after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterReply {
    KeepOpen,
    Close,
}

impl Session {
    pub(super) fn new(id: u64, peer: SocketAddr, auth: &Auth) -> Self {
        Session { id, peer, name: String::new(), authenticated: auth.is_open() }
    }

    /// Returns the maximum size of the client's commands.
    pub(super) fn limits(&self) -> CommandLimits {
        if self.authenticated { CommandLimits::AUTHENTICATED } else { CommandLimits::UNAUTHENTICATED }
    }

    /// Returns true if the client may run this command; before authentication only a few are allowed.
    pub(super) fn may_run(&self, command: CommandName) -> bool {
        use CommandName::{Auth, Hello, Quit, Reset};
        self.authenticated || matches!(command, Auth | Hello | Quit | Reset)
    }

    /// Runs `command` with these arguments and writes its reply.
    pub(super) fn run(
        &mut self,
        command: CommandName,
        words: &[&[u8]],
        auth: &Auth,
        replies: &mut ReplyBuffer,
    ) -> AfterReply {
        match (command, words) {
            (CommandName::Ping, []) => replies.simple("PONG"),
            (CommandName::Ping | CommandName::Echo, [message]) => replies.bulk(message),
            (CommandName::Auth, [token] | [_, token]) => self.auth(token, auth, replies),
            (CommandName::Hello, words) => self.hello(words, auth, replies),
            (CommandName::Select, [b"0"]) => replies.simple("OK"),
            (CommandName::Select, [_]) => replies.error("ERR", "DB index is out of range: only 0 exists"),
            (CommandName::Info, _) => replies.bulk(info().as_bytes()),
            (CommandName::Client, [subcommand, rest @ ..]) => self.client(subcommand, rest, replies),
            (CommandName::Config, [subcommand, ..]) if subcommand.eq_ignore_ascii_case(b"GET") => {
                replies.map(0)
            }
            (CommandName::Config, [_, ..]) => {
                replies.error("ERR", "only CONFIG GET is supported: settings are in the configuration file")
            }
            (CommandName::Command, [subcommand, ..]) if subcommand.eq_ignore_ascii_case(b"COUNT") => {
                replies.integer(super::COMMAND_COUNT);
            }
            (CommandName::Command, [subcommand, ..]) if subcommand.eq_ignore_ascii_case(b"DOCS") => {
                replies.map(0)
            }
            (CommandName::Command, _) => replies.array(0),
            (CommandName::Reset, _) => {
                (self.authenticated, replies.version_3) = (auth.is_open(), false);
                self.name.clear();
                replies.simple("RESET");
            }
            (CommandName::Quit, _) => {
                replies.simple("OK");
                return AfterReply::Close;
            }
            (command, _) => {
                let name = command.as_str().to_ascii_lowercase();
                replies.error("ERR", format_args!("wrong number of arguments for '{name}' command"));
            }
        }
        AfterReply::KeepOpen
    }

    fn auth(&mut self, token: &[u8], auth: &Auth, replies: &mut ReplyBuffer) {
        if self.authenticate(token, auth, replies) {
            replies.simple("OK");
        }
    }

    /// Authenticates the client and returns true if `token` is valid. Otherwise writes an error and leaves
    /// the session as it was.
    fn authenticate(&mut self, token: &[u8], auth: &Auth, replies: &mut ReplyBuffer) -> bool {
        let is_valid = auth.may_call(Some(token));
        self.authenticated |= is_valid;
        if !is_valid {
            replies.error("WRONGPASS", "invalid username-password pair or user is disabled.");
        }
        is_valid
    }

    /// Runs `HELLO [2|3 [AUTH user token] [SETNAME name]]`.
    fn hello(&mut self, words: &[&[u8]], auth: &Auth, replies: &mut ReplyBuffer) {
        let (version_3, mut options) = match words {
            [] => (replies.version_3, words),
            [b"2", rest @ ..] => (false, rest),
            [b"3", rest @ ..] => (true, rest),
            _ => return replies.error("NOPROTO", "unsupported protocol version"),
        };
        let (mut token, mut name) = (None, None);
        loop {
            options = match options {
                [option, _, secret, rest @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                    token = Some(*secret);
                    rest
                }
                [option, value, rest @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                    let Some(value) = printable_name(value) else { return write_invalid_name(replies) };
                    name = Some(value);
                    rest
                }
                [option, ..] => {
                    let option = Excerpt(option);
                    return replies.error("ERR", format_args!("Syntax error in HELLO option '{option}'"));
                }
                [] => break,
            };
        }
        if let Some(token) = token
            && !self.authenticate(token, auth, replies)
        {
            return;
        }
        if !self.authenticated {
            return replies.error(
                "NOAUTH",
                "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
                 <user> <pass> option can be used",
            );
        }
        replies.version_3 = version_3;
        if let Some(name) = name {
            name.clone_into(&mut self.name);
        }
        self.write_hello_reply(replies);
    }

    fn write_hello_reply(&self, replies: &mut ReplyBuffer) {
        replies.map(7);
        for (name, value) in [("server", "slidegate"), ("version", env!("CARGO_PKG_VERSION"))] {
            replies.bulk(name.as_bytes());
            replies.bulk(value.as_bytes());
        }
        for (name, number) in
            [("proto", if replies.version_3 { 3 } else { 2 }), ("id", i64::try_from(self.id).unwrap_or(0))]
        {
            replies.bulk(name.as_bytes());
            replies.integer(number);
        }
        for (name, value) in [("mode", "standalone"), ("role", "master")] {
            replies.bulk(name.as_bytes());
            replies.bulk(value.as_bytes());
        }
        replies.bulk(b"modules");
        replies.array(0);
    }

    fn client(&mut self, subcommand: &[u8], words: &[&[u8]], replies: &mut ReplyBuffer) {
        let is = |name: &str| subcommand.eq_ignore_ascii_case(name.as_bytes());
        match words {
            [name] if is("SETNAME") => match printable_name(name) {
                Some(name) => {
                    name.clone_into(&mut self.name);
                    replies.simple("OK");
                }
                None => write_invalid_name(replies),
            },
            [] if is("GETNAME") && self.name.is_empty() => replies.nil(),
            [] if is("GETNAME") => replies.bulk(self.name.as_bytes()),
            [] if is("ID") => replies.integer(i64::try_from(self.id).unwrap_or(0)),
            // Clients report the name and version of their library, which is not used.
            [_, _] if is("SETINFO") => replies.simple("OK"),
            [_] if is("NO-EVICT") || is("NO-TOUCH") => replies.simple("OK"),
            _ if is("INFO") || is("LIST") => {
                let Session { id, peer, name, .. } = self;
                replies.bulk(format!("id={id} addr={peer} name={name} db=0\n").as_bytes());
            }
            _ => {
                let subcommand = Excerpt(subcommand);
                replies.error(
                    "ERR",
                    format_args!("unknown subcommand or wrong number of arguments for '{subcommand}'"),
                );
            }
        }
    }
}

/// Returns the name if it is printable ASCII without spaces and not too long.
fn printable_name(name: &[u8]) -> Option<&str> {
    let plain = name.len() <= MAX_NAME && name.iter().all(u8::is_ascii_graphic);
    str::from_utf8(name).ok().filter(|_| plain)
}

fn write_invalid_name(replies: &mut ReplyBuffer) {
    replies.error("ERR", "Client names cannot contain spaces, newlines or special characters.");
}

fn info() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\nslidegate_version:{version}\r\n\
         loading:0\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"
    )
}
