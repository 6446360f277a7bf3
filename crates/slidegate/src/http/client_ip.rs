//! Address of the client behind proxies. Pure.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv6Net};

use crate::Error;

/// Parses a network of trusted proxies, or the address of one proxy.
pub fn network(text: &str) -> Result<IpNet, Error> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    let net = text.parse::<IpNet>().ok().or_else(address).ok_or_else(|| {
        Error::invalid(format!(
            "a trusted proxy must be an address or a network such as 10.0.0.0/8, not \"{text}\""
        ))
    })?;
    Ok(net.trunc())
}

/// Returns the client's address: the last address in the chain that does not belong to a trusted proxy.
///
/// Each proxy appends the address of its peer. The chain is therefore read from its end, `nearest` first, as long as
/// the author of an entry is trusted. Entries that a client has written itself are further to the front, so they are
/// never read.
pub fn client<'h>(peer: IpAddr, nearest: impl Iterator<Item = &'h str>, trusted: &[IpNet]) -> IpAddr {
    let mut client = peer.to_canonical();
    for text in nearest {
        if !trusted.iter().any(|net| net.contains(&client)) {
            break;
        }
        // A trusted proxy writes only addresses; anything else ends the chain.
        let Some(address) = address(text.trim()) else { break };
        client = address.to_canonical();
    }
    client
}

/// Parses an address with or without a port, with or without brackets.
fn address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    if let Some((inside, _)) = text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        return inside.parse().ok();
    }
    let (host, _port) = text.rsplit_once(':')?;
    host.parse().ok().filter(IpAddr::is_ipv4)
}

/// Returns the text under which a client is counted: an IPv4 address, or the network of an IPv6 address.
pub fn counted(address: IpAddr, ipv6_prefix: u8) -> String {
    match address {
        IpAddr::V4(address) => address.octets().into_iter().fold(String::with_capacity(15), |text, octet| {
            // Runs for each request: formatting would take longer than the decision.
            let dot = if text.is_empty() { "" } else { "." };
            text + dot + itoa::Buffer::new().format(octet)
        }),
        IpAddr::V6(v6) if ipv6_prefix < 128 => {
            Ipv6Net::new(v6, ipv6_prefix).map_or_else(|_| v6.to_string(), |net| net.trunc().to_string())
        }
        IpAddr::V6(v6) => v6.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(peer: &str, forwarded: &str) -> String {
        let trusted = ["127.0.0.0/8", "10.0.0.0/8", "fd00::/8"].map(|net| net.parse().unwrap());
        counted(client(peer.parse().unwrap(), forwarded.rsplit(','), &trusted), 64)
    }

    #[test]
    fn believes_only_trusted_proxies() {
        let cases = [
            ("127.0.0.1", "", "127.0.0.1"),
            ("127.0.0.1", "1.2.3.4", "1.2.3.4"),
            ("9.9.9.9", "1.2.3.4", "9.9.9.9"),
            ("127.0.0.1", "6.6.6.6, 1.2.3.4", "1.2.3.4"),
            ("127.0.0.1", "6.6.6.6, 1.2.3.4, 10.0.0.7", "1.2.3.4"),
            ("127.0.0.1", "10.1.1.1, 10.0.0.7", "10.1.1.1"),
            ("127.0.0.1", "1.2.3.4, nonsense, 10.0.0.7", "10.0.0.7"),
            ("127.0.0.1", "1.2.3.4:5678", "1.2.3.4"),
            ("127.0.0.1", "[2001:db8:1:2:3::4]:80", "2001:db8:1:2::/64"),
            ("127.0.0.1", "2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
            ("::ffff:127.0.0.1", "::ffff:1.2.3.4", "1.2.3.4"),
            ("fd00::1", "2001:db8::1, fd00::2", "2001:db8::/64"),
        ];
        for (peer, forwarded, expected) in cases {
            assert_eq!(find(peer, forwarded), expected, "{peer} said {forwarded}");
        }
    }
}
