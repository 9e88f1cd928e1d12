//! Single values: durations, sizes, addresses, origins and names of hosts. Each function takes a
//! text and returns the value, or a sentence with what to write; none knows where the text came
//! from.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::time::Duration;

/// Deadlines are added to clocks; beyond this an addition could overflow, and no caller waits that
/// long.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// More threads than any machine of today has use for. Each costs a stack.
const MAX_THREADS: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not zero");

/// Returns a duration with a unit: `30s`, `5m`, `500ms`, `1h 30m`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if text.parse::<f64>().is_ok() {
        return Err(format!(
            "a duration needs a unit: write {text}s for seconds, or ms, m, h"
        ));
    }
    let parsed = humantime::parse_duration(text)
        .map_err(|_| "not a duration: write a number with a unit, such as 30s, 5m or 500ms".to_owned())?;
    if parsed > LONGEST {
        return Err("too long: at most 365d".to_owned());
    }
    Ok(parsed)
}

/// Returns a duration that must not be zero.
pub(crate) fn some_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be more than 0: write a duration such as 30s".to_owned()),
        parsed => Ok(parsed),
    }
}

/// How long a time limit is that was switched off: longer than any program runs.
const OFF: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Returns a time limit: a duration that must not be zero, or `off`.
pub(super) fn time_or_off(text: &str) -> Result<Duration, String> {
    match text.trim() {
        "off" => Ok(OFF),
        text => some_time(text),
    }
}

/// Bare seconds, as the older variable `STDIO_REQUEST_TIMEOUT` has them, or a duration with a unit.
pub(super) fn seconds_or_duration(text: &str) -> Result<Duration, String> {
    match text.trim().parse::<f64>() {
        Ok(seconds) => match Duration::try_from_secs_f64(seconds) {
            Ok(parsed) if !parsed.is_zero() && parsed <= LONGEST => Ok(parsed),
            Ok(_) | Err(_) => Err("must be more than 0 seconds and at most 365d".to_owned()),
        },
        Err(_) => time_or_off(text),
    }
}

/// Returns a number of bytes that is not zero: `1MiB`, `512KiB`, `5MB`, `1048576`.
pub(super) fn size(text: &str) -> Result<usize, String> {
    const FORM: &str = "not a size: write 1MiB, 512KiB, 5MB or a number of bytes";
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "ki" | "kib" => 1 << 10,
        "mi" | "mib" => 1 << 20,
        "gi" | "gib" => 1 << 30,
        _ => return Err(FORM.to_owned()),
    };
    let number: u64 = match number.parse() {
        Ok(number) => number,
        Err(_) if number.is_empty() => return Err(FORM.to_owned()),
        Err(_) => return Err("too large a size".to_owned()),
    };
    let bytes = number
        .checked_mul(factor)
        .and_then(|bytes| usize::try_from(bytes).ok());
    match bytes {
        Some(0) => Err("must be more than 0 bytes: write a size such as 1MiB".to_owned()),
        // More than a signed size can never be allocated, and sums of limits must not overflow.
        Some(bytes) if bytes <= isize::MAX as usize => Ok(bytes),
        Some(_) | None => Err("too large a size".to_owned()),
    }
}

/// Returns a whole number of at least one.
pub(super) fn count(text: &str) -> Result<usize, String> {
    match text.trim().parse::<u32>() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number as usize),
        Err(_) => Err("not a whole number: write one such as 10".to_owned()),
    }
}

/// Returns a number of threads: `4`, or `auto` for one per core that this process may use.
pub(super) fn threads(text: &str) -> Result<NonZeroUsize, String> {
    const FORM: &str = "not a number of threads: write one from 1 to 256, or auto for one per core";
    match text.trim() {
        // A system that does not name its cores is served by one thread.
        "auto" => {
            let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
            Ok(cores.min(MAX_THREADS))
        }
        text => match text.parse::<NonZeroUsize>() {
            Ok(number) if number <= MAX_THREADS => Ok(number),
            Ok(_) | Err(_) => Err(FORM.to_owned()),
        },
    }
}

/// Returns a part of the whole: `0.1`, `1`.
pub(super) fn share(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        Ok(_) | Err(_) => Err("not a share: write a number from 0 to 1, such as 0.1".to_owned()),
    }
}

/// Returns where a service is: `http://127.0.0.1:4318`.
pub(super) fn web_address(text: &str) -> Result<String, String> {
    const FORM: &str = "not a web address: write one such as http://127.0.0.1:4318";
    let text = text.trim();
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '<' | '>' | '\\' | '^' | '`');
    match rest {
        Some(rest) if !rest.is_empty() && !rest.starts_with('/') && rest.chars().all(is_plain) => {
            Ok(text.to_owned())
        }
        Some(_) | None => Err(FORM.to_owned()),
    }
}

/// Yes or no, in the words that variables are commonly given.
pub(crate) fn truth(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" | "" => Ok(false),
        _ => Err("write true or false".to_owned()),
    }
}

/// Returns where to listen: `127.0.0.1:3000`, `[::1]:3000`, `localhost:3000`, `:3000` or `3000`.
///
/// A port without a host means loopback: being reachable from elsewhere must be asked for by
/// address.
pub(super) fn listen(text: &str) -> Result<SocketAddr, String> {
    const FORM: &str =
        "not an address to listen on: write HOST:PORT, such as 127.0.0.1:3000, :3000 or 0.0.0.0:3000";
    let text = text.trim();
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    if text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
        return Err(format!("the port is missing: write {text}:3000"));
    }
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let port: u16 = port.parse().map_err(|_| FORM.to_owned())?;
    match host {
        "" => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        _ if host.eq_ignore_ascii_case("localhost") => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        "*" => Err(format!("write 0.0.0.0:{port} to listen on every interface")),
        _ => Err(format!(
            "the host must be an IP address or localhost: write 127.0.0.1:{port}, or 0.0.0.0:{port} for every interface"
        )),
    }
}

/// Returns the name of a host, without a port: `mcp.example.com`, `10.0.0.5`, `[::1]`.
pub(super) fn host(text: &str) -> Result<String, String> {
    let text = text.trim().to_ascii_lowercase();
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if bare.unwrap_or(&text).parse::<std::net::Ipv6Addr>().is_ok() {
        return Ok(format!("[{}]", bare.unwrap_or(&text)));
    }
    if let Some((host, port)) = text.rsplit_once(':')
        && port.bytes().all(|b| b.is_ascii_digit())
        && !host.is_empty()
    {
        return Err(format!("write the host without a port: {host}"));
    }
    if text.contains("://") {
        return Err("write only the name of the host, such as mcp.example.com".to_owned());
    }
    if text == "*" {
        return Err("a wildcard would disable the check of the Host header: list the names".to_owned());
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if text.is_empty() || !text.chars().all(plain) {
        return Err("not the name of a host: write one such as mcp.example.com".to_owned());
    }
    Ok(text)
}

/// Returns an origin of a browser page: scheme and host, with a port where there is one, and no
/// path.
pub(super) fn origin(text: &str) -> Result<String, String> {
    const FORM: &str = "not an origin: write scheme and host without a path, such as https://app.example.com";
    let text = text.trim().to_ascii_lowercase();
    if text == "*" {
        return Err("a wildcard would disable the check of the Origin header: list the origins".to_owned());
    }
    // Copied from an address bar an origin ends with a slash; a browser never sends that.
    let text = text.strip_suffix('/').unwrap_or(&text);
    let Some((scheme, authority)) = text.split_once("://") else {
        return Err(FORM.to_owned());
    };
    let scheme_is_plain = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    let authority_is_plain = !authority.is_empty()
        && authority
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':' | '[' | ']'));
    if scheme_is_plain && authority_is_plain {
        Ok(text.to_owned())
    } else {
        Err(FORM.to_owned())
    }
}

/// Returns the name of an environment variable for a child.
pub(super) fn variable_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(['=', '\0']) {
        return Err("not the name of an environment variable: write one such as API_KEY".to_owned());
    }
    Ok(text.to_owned())
}

/// Returns the name of an HTTP header (RFC 9110, section 5.1).
pub(super) fn header_name(text: &str) -> Result<String, String> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if text.is_empty() || !text.bytes().all(token) {
        return Err("not the name of an HTTP header: write one such as X-GitHub-Token".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_carry_units() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration(" 1h 30m "), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
    }

    #[test]
    fn bare_number_is_no_duration_and_the_error_names_a_unit() {
        for bare in ["30", "0", "-5", "1.5"] {
            let error = duration(bare).expect_err("no unit");
            assert!(error.contains(&format!("write {bare}s")), "{error}");
        }
        assert!(duration("soon").expect_err("no duration").contains("30s"));
        assert!(duration("").is_err());
    }

    #[test]
    fn a_duration_that_a_clock_cannot_hold_is_refused() {
        for long in [
            "366d",
            "99999999999y",
            "18446744073709551615s",
            "99999999999999999999999s",
        ] {
            assert!(duration(long).is_err(), "{long}");
        }
        assert_eq!(duration("365d"), Ok(LONGEST));
        assert!(some_time("0s").is_err());
    }

    #[test]
    fn the_older_timeout_variable_may_be_bare_seconds() {
        assert_eq!(seconds_or_duration("45"), Ok(Duration::from_secs(45)));
        assert_eq!(seconds_or_duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds_or_duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["0", "-1", "nan", "inf", "1e30", "x"] {
            assert!(seconds_or_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_bytes_or_carry_a_unit() {
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(size("512KiB"), Ok(512 << 10));
        assert_eq!(size("5MB"), Ok(5_000_000));
        assert_eq!(size("1 gib"), Ok(1 << 30));
        assert_eq!(size("1048576"), Ok(1 << 20));
        for bad in [
            "",
            "0",
            "0MiB",
            "MiB",
            "-1",
            "1.5MiB",
            "1TiBit",
            "99999999999999999999",
            "9999999999999GiB",
        ] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_port_alone_listens_on_loopback() {
        let loopback: SocketAddr = "127.0.0.1:3000".parse().expect("an address");
        for text in [
            "127.0.0.1:3000",
            ":3000",
            "localhost:3000",
            "LOCALHOST:3000",
            "3000",
        ] {
            assert_eq!(listen(text), Ok(loopback), "{text}");
        }
        assert_eq!(listen(":0").map(|address| address.port()), Ok(0));
        assert_eq!(listen("[::1]:80").map(|address| address.is_ipv6()), Ok(true));
    }

    #[test]
    fn address_that_cannot_be_bound_is_refused_with_a_hint() {
        assert!(listen("*:80").expect_err("star").contains("0.0.0.0:80"));
        assert!(
            listen("example.com:80")
                .expect_err("name")
                .contains("127.0.0.1:80")
        );
        assert!(listen("0.0.0.0").expect_err("no port").contains("0.0.0.0:3000"));
        for bad in ["", ":", ":99999", "127.0.0.1:x"] {
            assert!(listen(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hosts_are_names_without_ports_and_origins_have_no_path() {
        assert_eq!(host("MCP.example.com"), Ok("mcp.example.com".into()));
        assert_eq!(host("::1"), Ok("[::1]".into()));
        assert_eq!(host("[::1]"), Ok("[::1]".into()));
        assert!(
            host("mcp.example.com:80")
                .expect_err("port")
                .contains("without a port")
        );
        for bad in ["", "*", "https://x", "a b"] {
            assert!(host(bad).is_err(), "{bad}");
        }
        assert_eq!(
            origin("https://App.example.com/"),
            Ok("https://app.example.com".into())
        );
        assert_eq!(
            origin("http://localhost:8080"),
            Ok("http://localhost:8080".into())
        );
        for bad in ["", "*", "app.example.com", "https://", "https://a/b", "null"] {
            assert!(origin(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_of_variables_and_headers_are_checked() {
        assert!(variable_name("API_KEY").is_ok());
        assert!(variable_name("").is_err());
        assert!(variable_name("A=B").is_err());
        assert!(header_name("X-GitHub-Token").is_ok());
        assert!(header_name("X GitHub").is_err());
        assert!(header_name("").is_err());
    }
}
