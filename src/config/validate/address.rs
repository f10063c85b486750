//! Addresses as text: an IP literal and a port.
//!
//! Pure: no I/O. Names are never resolved: a name may stand for many instances, and its answer changes behind
//! tidegate's back.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::report::Problem;

/// Which ports are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ports {
    /// 1 to 65535.
    Fixed,
    /// Also 0: the system chooses.
    OrEphemeral,
}

/// Reads `text`.
pub(super) fn parse(text: &str, ports: Ports) -> Result<SocketAddr, Problem> {
    const MAX_LEN: usize = 300;
    if text.len() > MAX_LEN {
        return Err(Problem::new("the text is too long for an address", "write `IP:PORT`"));
    }
    let shown = text.escape_debug().to_string();
    let Ok(socket) = text.parse::<SocketAddr>() else { return Err(diagnose(text, &shown)) };
    let port = text.rsplit(':').next().unwrap_or_default();
    if port.len() > 1 && port.starts_with('0') {
        let help = format!("write `{socket}`, if decimal {} is meant", socket.port());
        return Err(Problem::new(format!("port `{port}` has a leading zero"), help));
    }
    if socket.port() == 0 && ports == Ports::Fixed {
        return Err(Problem::new(format!("`{shown}` has port 0"), "write a port from 1 to 65535"));
    }
    if text.contains('%') {
        let help = format!("write `{}`", SocketAddr::new(socket.ip(), socket.port()));
        return Err(Problem::new(format!("`{shown}` has a zone id, which no client could use"), help));
    }
    Ok(socket)
}

/// Reads `text` as something that can be connected to from elsewhere.
pub(super) fn parse_peer(text: &str) -> Result<SocketAddr, Problem> {
    let socket = parse(text, Ports::Fixed)?;
    let ip = socket.ip().to_canonical();
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    if ip.is_unspecified() || ip.is_multicast() || broadcast {
        let help = "write the address of one instance, such as `10.0.0.1:8000`";
        return Err(Problem::new(format!("nobody can connect to `{text}`"), help));
    }
    Ok(socket)
}

/// Why `text` is no address.
fn diagnose(text: &str, shown: &str) -> Problem {
    if text.trim() != text {
        return Problem::new(format!("`{shown}` has spaces around it"), format!("write `{}`", text.trim()));
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        let rest = rest.split('/').next().unwrap_or(rest);
        return Problem::new(
            format!("`{shown}` is a URL"),
            format!("leave out `{scheme}://`: write `{rest}`"),
        );
    }
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        let help = format!("write `{}`, with the port that is meant", SocketAddr::new(ip, 8000));
        return Problem::new(format!("`{shown}` has no port"), help);
    }
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    if host.contains(':') && host.parse::<Ipv6Addr>().is_ok() {
        let help = format!("write `[{host}]:{port}`");
        return Problem::new(format!("`{shown}` is an IPv6 address without brackets"), help);
    }
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let literal = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    if literal {
        let what = if digits { "is larger than 65535" } else { "is not a number" };
        return Problem::new(
            format!("port `{}` {what}", port.escape_debug()),
            "write a port from 1 to 65535",
        );
    }
    if host.eq_ignore_ascii_case("localhost") {
        let port = if digits { port } else { "8000" };
        return Problem::new(
            format!("`{shown}` is a host name"),
            format!("write `127.0.0.1:{port}` or `[::1]:{port}`"),
        );
    }
    if !host.is_empty() && host.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        let octal = host.split('.').any(|part| part.len() > 1 && part.starts_with('0'));
        let what = if octal { "has a number with a leading zero" } else { "is not an IPv4 address" };
        return Problem::new(
            format!("`{shown}` {what}"),
            "write four numbers from 0 to 255, such as `10.0.0.1:8000`",
        );
    }
    let name = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !host.is_empty() && host.chars().all(name) {
        let port = if digits { port } else { "8000" };
        let help = format!("write the IP address it stands for, such as `10.0.0.1:{port}`");
        return Problem::new(format!("`{shown}` is a host name, not an IP address"), help);
    }
    Problem::new(
        format!("`{shown}` is not an address"),
        "write `IP:PORT`, such as `10.0.0.1:8000` or `[fd00::1]:8000`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_none_is_told_what_it_is() {
        let table = [
            (
                "gpu-1.example:8000",
                "`gpu-1.example:8000` is a host name, not an IP address",
                "such as `10.0.0.1:8000`",
            ),
            ("gpu-1", "`gpu-1` is a host name, not an IP address", "`10.0.0.1:8000`"),
            ("localhost:80", "`localhost:80` is a host name", "`127.0.0.1:80`"),
            ("10.0.0.1", "`10.0.0.1` has no port", "`10.0.0.1:8000`"),
            ("::1", "`::1` has no port", "`[::1]:8000`"),
            ("[::1]", "`[::1]` has no port", "`[::1]:8000`"),
            ("10.0.0.1:0777", "port `0777` has a leading zero", "`10.0.0.1:777`"),
            ("10.0.0.1:0", "`10.0.0.1:0` has port 0", "1 to 65535"),
            ("10.0.0.1:70000", "port `70000` is larger than 65535", "1 to 65535"),
            ("10.0.0.1:http", "port `http` is not a number", "1 to 65535"),
            ("10.0.0.01:80", "`10.0.0.01:80` has a number with a leading zero", "0 to 255"),
            ("10.0.0.256:80", "`10.0.0.256:80` is not an IPv4 address", "0 to 255"),
            ("http://10.0.0.1:80/x", "`http://10.0.0.1:80/x` is a URL", "write `10.0.0.1:80`"),
            (" 10.0.0.1:80", "` 10.0.0.1:80` has spaces around it", "write `10.0.0.1:80`"),
            (
                "[fe80::1%7]:80",
                "`[fe80::1%7]:80` has a zone id, which no client could use",
                "write `[fe80::1]:80`",
            ),
            ("0.0.0.0:80", "nobody can connect to `0.0.0.0:80`", "one instance"),
            ("[::ffff:0.0.0.0]:80", "nobody can connect to `[::ffff:0.0.0.0]:80`", "one instance"),
            ("224.0.0.1:80", "nobody can connect to `224.0.0.1:80`", "one instance"),
            ("", "`` is not an address", "IP:PORT"),
            (":80", "`:80` is not an address", "IP:PORT"),
            ("a b\n:80", "`a b\\n:80` is not an address", "IP:PORT"),
        ];
        for (text, message, help) in table {
            let problem = parse_peer(text).unwrap_err();
            assert_eq!(problem.message, message);
            assert!(problem.help.contains(help), "{text}: {}", problem.help);
        }
        assert!(parse_peer(&"1".repeat(100_000)).is_err());
        assert!(parse_peer("2001:db8::1:8000").unwrap_err().message.contains("no port"));
    }

    #[test]
    fn tidegate_itself_may_listen_on_any_address_and_on_an_ephemeral_port() {
        assert!(parse("0.0.0.0:0", Ports::OrEphemeral).is_ok());
        assert!(parse("[::]:18000", Ports::OrEphemeral).is_ok());
        assert!(parse("10.0.0.1:00", Ports::OrEphemeral).is_err());
    }
}
