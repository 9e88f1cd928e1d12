//! The headers that go with every request: from flags, from a file, from variables. Their values
//! are never shown.

use std::path::Path;

use gateway::settings::Secret;
use http::{HeaderName, HeaderValue, header};
use url::Url;

use crate::config::environment::Environment;
use crate::config::problem::Place;
use crate::config::reader::Walk;
use crate::config::{interpolate, remote};
use crate::flags::ConnectFlags;

/// The variable that a bearer token is in unless another was named.
const TOKEN: &str = "BEARER_TOKEN";

pub(super) fn read(
    flags: &ConnectFlags,
    environment: &Environment,
    url: &Url,
    walk: &Walk<'_>,
) -> Vec<(HeaderName, Secret)> {
    let mut headers = Vec::new();
    for (line, place) in lines(flags, environment, walk) {
        match header(&line, walk) {
            Ok(header) => headers.push(header),
            Err(message) => walk.fail(place, message),
        }
    }
    let authorized = headers.iter().any(|(name, _)| *name == header::AUTHORIZATION);
    if let Some(token) = bearer(flags, environment, authorized, walk) {
        headers.push((header::AUTHORIZATION, token));
    }
    warn_of_clear_text(&headers, url, walk);
    headers
}

/// Returns the headers of flags alone.
pub(super) fn of_flags(flags: &[Secret], url: &Url, walk: &Walk<'_>) -> Vec<(HeaderName, Secret)> {
    let mut headers = Vec::new();
    for line in flags {
        match header(line.expose(), walk) {
            Ok(header) => headers.push(header),
            Err(message) => walk.fail(Place::Flag("--header"), message),
        }
    }
    warn_of_clear_text(&headers, url, walk);
    headers
}

fn warn_of_clear_text(headers: &[(HeaderName, Secret)], url: &Url, walk: &Walk<'_>) {
    if !headers.is_empty() && url.scheme() == "http" && !is_near(url) {
        walk.note(
            "the headers, which may be secrets, are sent without encryption: use https if the server has it",
        );
    }
}

/// Every line that is a header, and where it stands.
fn lines(flags: &ConnectFlags, environment: &Environment, walk: &Walk<'_>) -> Vec<(String, Place)> {
    let mut lines: Vec<(String, Place)> = Vec::new();
    if flags.header.is_empty() {
        let variable = environment.filled("RIALTO_HEADERS").unwrap_or_default();
        lines.extend(meaningful(variable).map(|line| (line.to_owned(), Place::Variable("RIALTO_HEADERS"))));
    } else {
        lines.extend(
            flags
                .header
                .iter()
                .map(|line| (line.expose().to_owned(), Place::Flag("--header"))),
        );
    }
    let (file, place) = match (
        flags.header_file.as_deref(),
        environment.filled("RIALTO_HEADER_FILE"),
    ) {
        (Some(file), _) => (file, Place::Flag("--header-file")),
        (None, Some(file)) => (file, Place::Variable("RIALTO_HEADER_FILE")),
        (None, None) => return lines,
    };
    match interpolate::read_text(Path::new(file)) {
        Ok(text) => lines.extend(meaningful(&text).map(|line| (line.to_owned(), place.clone()))),
        Err(message) => walk.fail(place, format!("the file {file} {message}")),
    }
    lines
}

fn meaningful(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn header(line: &str, walk: &Walk<'_>) -> Result<(HeaderName, Secret), String> {
    let (name, value) = line
        .split_once(':')
        .ok_or("is no header: write it as 'Name: value'")?;
    let name = remote::header_name(name.trim())?;
    // Hosts pass arguments on as they are written, so there is no shell that fills in variables.
    let value = interpolate::fill(value.trim(), &walk.sources)?;
    if HeaderValue::from_str(&value).is_err() {
        return Err(format!(
            "the value of {name} holds characters that no header can carry, such as a line break: remove them"
        ));
    }
    Ok((name, Secret::new(value)))
}

/// Returns the value of `Authorization`, if a token was given. A header that was written out wins
/// over a variable that happens to be set.
fn bearer(
    flags: &ConnectFlags,
    environment: &Environment,
    authorized: bool,
    walk: &Walk<'_>,
) -> Option<Secret> {
    let named = flags
        .bearer_env
        .as_deref()
        .map(|variable| (variable, Place::Flag("--bearer-env")))
        .or_else(|| {
            let variable = environment.filled("RIALTO_BEARER_ENV")?;
            Some((variable, Place::Variable("RIALTO_BEARER_ENV")))
        });
    let (token, place) = match named {
        Some((variable, place)) => match environment.filled(variable) {
            Some(token) => (token, place),
            None => {
                walk.fail(
                    place,
                    format!("the variable {variable} is not set: put the token there"),
                );
                return None;
            }
        },
        None if authorized => return None,
        None => (environment.filled(TOKEN)?, Place::Variable(TOKEN)),
    };
    if authorized {
        walk.fail(
            place,
            "does not go together with an Authorization header: keep one of them",
        );
        return None;
    }
    let token = token.trim();
    let value = format!("Bearer {token}");
    if token.contains(char::is_whitespace) || HeaderValue::from_str(&value).is_err() {
        walk.fail(
            place,
            "the token holds characters that no header can carry: write it without spaces and line breaks",
        );
        return None;
    }
    Some(Secret::new(value))
}

/// No one can listen on the way to a server on this machine.
fn is_near(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}
