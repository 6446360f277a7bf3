//! What is known of a client, and the commands by which Redis clients introduce themselves and look around.

use std::net::SocketAddr;

use super::encoder::{Answers, Shown};
use super::parser::Caps;
use crate::app::auth::Auth;

/// What clients that ask may take for granted.
const REDIS_VERSION: &str = "7.0.0";

/// The longest name of a client, in bytes.
const MAX_NAME: usize = 64;

/// Commands that decide nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plain {
    Auth,
    Client,
    Command,
    Config,
    Echo,
    Hello,
    Info,
    Ping,
    Quit,
    Reset,
    Select,
}

/// One connection's client.
pub(super) struct Client {
    id: u64,
    peer: SocketAddr,
    name: String,
    /// Whether it may ask: it has shown a token, or needs none.
    pub(super) known: bool,
}

/// Whether a connection goes on after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    Close,
}

impl Client {
    pub(super) fn new(id: u64, peer: SocketAddr, access: &Auth) -> Self {
        Client { id, peer, name: String::new(), known: access.is_open() }
    }

    /// How much it may send as one command.
    pub(super) fn caps(&self) -> Caps {
        if self.known { Caps::KNOWN } else { Caps::STRANGER }
    }

    /// Whether it may give this command before it has shown a token.
    pub(super) fn may(&self, command: Plain) -> bool {
        self.known || matches!(command, Plain::Auth | Plain::Hello | Plain::Quit | Plain::Reset)
    }

    /// Answers `command` with these words after its name.
    pub(super) fn answer(
        &mut self,
        command: Plain,
        words: &[&[u8]],
        access: &Auth,
        answers: &mut Answers,
    ) -> Then {
        match (command, words) {
            (Plain::Ping, []) => answers.simple("PONG"),
            (Plain::Ping | Plain::Echo, [message]) => answers.bulk(message),
            (Plain::Auth, [token] | [_, token]) => self.auth(token, access, answers),
            (Plain::Hello, words) => self.hello(words, access, answers),
            (Plain::Select, [b"0"]) => answers.simple("OK"),
            (Plain::Select, [_]) => answers.error("ERR", "DB index is out of range: there is only 0"),
            (Plain::Info, _) => answers.bulk(info().as_bytes()),
            (Plain::Client, [what, rest @ ..]) => self.client(what, rest, answers),
            (Plain::Config, [what, ..]) if what.eq_ignore_ascii_case(b"GET") => answers.map(0),
            (Plain::Config, [_, ..]) => answers.error("ERR", "CONFIG takes GET: see the rules file"),
            (Plain::Command, [what, ..]) if what.eq_ignore_ascii_case(b"COUNT") => {
                answers.integer(super::COMMANDS);
            }
            (Plain::Command, [what, ..]) if what.eq_ignore_ascii_case(b"DOCS") => answers.map(0),
            (Plain::Command, _) => answers.array(0),
            (Plain::Reset, _) => {
                (self.known, answers.version_3) = (access.is_open(), false);
                self.name.clear();
                answers.simple("RESET");
            }
            (Plain::Quit, _) => {
                answers.simple("OK");
                return Then::Close;
            }
            (command, _) => {
                let name = format!("{command:?}").to_ascii_lowercase();
                answers.error("ERR", format_args!("wrong number of arguments for '{name}' command"));
            }
        }
        Then::GoOn
    }

    fn auth(&mut self, token: &[u8], access: &Auth, answers: &mut Answers) {
        if self.show(token, access, answers) {
            answers.simple("OK");
        }
    }

    /// Whether `token` lets ask; if not, that is said. A wrong one leaves things as they were.
    fn show(&mut self, token: &[u8], access: &Auth, answers: &mut Answers) -> bool {
        let right = access.may_call(Some(token));
        self.known |= right;
        if !right {
            answers.error("WRONGPASS", "invalid username-password pair or user is disabled.");
        }
        right
    }

    /// `HELLO [2|3 [AUTH user token] [SETNAME name]]`.
    fn hello(&mut self, words: &[&[u8]], access: &Auth, answers: &mut Answers) {
        let (version_3, mut options) = match words {
            [] => (answers.version_3, words),
            [b"2", rest @ ..] => (false, rest),
            [b"3", rest @ ..] => (true, rest),
            _ => return answers.error("NOPROTO", "unsupported protocol version"),
        };
        let (mut token, mut name) = (None, None);
        loop {
            options = match options {
                [option, _, shown, rest @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                    token = Some(*shown);
                    rest
                }
                [option, own, rest @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                    let Some(own) = checked(own) else { return bad_name(answers) };
                    name = Some(own);
                    rest
                }
                [option, ..] => {
                    let option = Shown(option);
                    return answers.error("ERR", format_args!("Syntax error in HELLO option '{option}'"));
                }
                [] => break,
            };
        }
        if let Some(token) = token
            && !self.show(token, access, answers)
        {
            return;
        }
        if !self.known {
            return answers.error(
                "NOAUTH",
                "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
                 <user> <pass> option can be used",
            );
        }
        answers.version_3 = version_3;
        if let Some(name) = name {
            name.clone_into(&mut self.name);
        }
        self.introduce(answers);
    }

    fn introduce(&self, answers: &mut Answers) {
        answers.map(7);
        for (name, value) in [("server", "slidegate"), ("version", env!("CARGO_PKG_VERSION"))] {
            answers.bulk(name.as_bytes());
            answers.bulk(value.as_bytes());
        }
        for (name, number) in
            [("proto", if answers.version_3 { 3 } else { 2 }), ("id", i64::try_from(self.id).unwrap_or(0))]
        {
            answers.bulk(name.as_bytes());
            answers.integer(number);
        }
        for (name, value) in [("mode", "standalone"), ("role", "master")] {
            answers.bulk(name.as_bytes());
            answers.bulk(value.as_bytes());
        }
        answers.bulk(b"modules");
        answers.array(0);
    }

    fn client(&mut self, what: &[u8], words: &[&[u8]], answers: &mut Answers) {
        let is = |known: &str| what.eq_ignore_ascii_case(known.as_bytes());
        match words {
            [name] if is("SETNAME") => match checked(name) {
                Some(name) => {
                    name.clone_into(&mut self.name);
                    answers.simple("OK");
                }
                None => bad_name(answers),
            },
            [] if is("GETNAME") && self.name.is_empty() => answers.nil(),
            [] if is("GETNAME") => answers.bulk(self.name.as_bytes()),
            [] if is("ID") => answers.integer(i64::try_from(self.id).unwrap_or(0)),
            // Clients say who made them; nobody here asks.
            [_, _] if is("SETINFO") => answers.simple("OK"),
            [_] if is("NO-EVICT") || is("NO-TOUCH") => answers.simple("OK"),
            _ if is("INFO") || is("LIST") => {
                let Client { id, peer, name, .. } = self;
                answers.bulk(format!("id={id} addr={peer} name={name} db=0\n").as_bytes());
            }
            _ => {
                let what = Shown(what);
                answers.error(
                    "ERR",
                    format_args!("unknown subcommand or wrong number of arguments for '{what}'"),
                );
            }
        }
    }
}

/// A name that can be shown as it is.
fn checked(name: &[u8]) -> Option<&str> {
    let plain = name.len() <= MAX_NAME && name.iter().all(u8::is_ascii_graphic);
    str::from_utf8(name).ok().filter(|_| plain)
}

fn bad_name(answers: &mut Answers) {
    answers.error("ERR", "Client names cannot contain spaces, newlines or special characters.");
}

fn info() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\nslidegate_version:{version}\r\n\
         loading:0\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"
    )
}
