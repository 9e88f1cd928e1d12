//! Access to the page: by which visitor, and from where.
//!
//! A request must come from a document of this gateway, or from its user. A page of another site,
//! or of another port of this machine, has no business here: there are no CORS headers, and what a
//! browser tells about the origin of a request is checked. What acts must be sent by a script of the
//! page: with a header of its own, which no form can send, and which a script of another site cannot
//! send without a preflight request.

use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{self, HeaderMap, HeaderName};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};

use super::{MAX_BODY, OWN_HEADER, Origin, PageRefusal, Wanted, with_type};
use crate::active_config::ActiveConfig;
use crate::frontend::body::Body;
use crate::frontend::request_body::RequestBody;
use crate::frontend::respond;
use crate::gateway::Gateway;
use crate::guard::bearer::{self, Credential};
use crate::guard::page::PageAccess;
use crate::guard::{AuthTarget, Caller};
use crate::page_cookie;
use crate::reply::Refusal;

/// What a proxy adds. Without `auth` a request that came through one is not of this machine.
const FORWARDED: [&str; 4] = ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip"];
/// What the path of a cookie may hold.
const COOKIE_PATH: fn(char) -> bool = |c| c.is_ascii_alphanumeric() || "/-._~".contains(c);

const FORM: &str = include_str!("sign_in.html");
const FORM_STYLE: &str = include_str!("sign_in.css");

/// A visitor of the page.
#[derive(Debug)]
pub(super) struct Visitor {
    pub(super) caller: Arc<Caller>,
    right: Right,
}

/// What the right of a visitor rests on.
#[derive(Debug, Clone)]
pub(super) enum Right {
    /// A browser of this machine, where no credentials are needed.
    Local,
    /// The user of the admin socket.
    Socket,
    /// An admin with the cookie that holds this ticket.
    Cookie { ticket: String },
    /// An admin with a token, and the ticket that the token would give.
    Token { ticket: Option<String> },
}

impl Visitor {
    /// Returns the name of an admin that has signed in.
    pub(super) fn signed_in(&self) -> Option<&str> {
        let is_signed_in = matches!(self.right, Right::Cookie { .. });
        is_signed_in.then(|| self.caller.principal.as_str())
    }

    /// Returns whether it is at the machine of this gateway.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.right, Right::Local)
    }

    /// Returns what its right rests on, for a stream that outlives the request.
    pub(super) fn right(&self) -> Right {
        self.right.clone()
    }
}

impl Right {
    /// Returns whether it holds now, and under this configuration.
    pub(super) fn holds(&self, config: &ActiveConfig, now: SystemTime) -> bool {
        let is_admin = |ticket: &str| {
            matches!(config.page, PageAccess::Admins { .. }) && config.guard.page_admin(ticket, now).is_some()
        };
        match self {
            Self::Local => config.page == PageAccess::AnyLocal,
            Self::Socket => true,
            Self::Cookie { ticket } => is_admin(ticket),
            Self::Token { ticket } => ticket.as_deref().is_some_and(is_admin),
        }
    }
}

/// Checks where a request comes from, as far as its browser tells.
pub(super) fn check_site(config: &ActiveConfig, parts: &Parts, wanted: &Wanted) -> Result<(), PageRefusal> {
    let headers = &parts.headers;
    let refused = |text: &str| Err(PageRefusal::new(StatusCode::FORBIDDEN, "not_same_origin", text));
    if let Some(origin) = headers.get(header::ORIGIN)
        && !is_own(origin, headers, config)
    {
        return refused("this request comes from another site");
    }
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    match site {
        // Over plain HTTP from another machine a browser sends only the origin, which was checked.
        None if *wanted == Wanted::SignOut && headers.contains_key(header::ORIGIN) => {}
        None if wanted.acts() => {
            return refused("a script of the page must send this request (`Sec-Fetch-Site: same-origin`)");
        }
        None | Some(b"same-origin") => {}
        Some(b"none") if !wanted.acts() => {}
        // A link on another page of this machine.
        Some(_) if !wanted.is_api() && *wanted != Wanted::SignIn => {}
        Some(_) => return refused("this request comes from another site"),
    }
    if wanted.acts() && headers.get(OWN_HEADER).map(HeaderValue::as_bytes) != Some(b"1") {
        return refused("a script of the page must send this request (`X-Rialto-Page: 1`)");
    }
    // A form of another site can send credentials that it knows.
    if *wanted == Wanted::SignIn && site.is_none() && !headers.contains_key(header::ORIGIN) {
        return refused("the form of the page must send this request");
    }
    Ok(())
}

/// Returns whether an origin is that of this gateway, as the request names it.
fn is_own(origin: &HeaderValue, headers: &HeaderMap, config: &ActiveConfig) -> bool {
    let Ok(origin) = origin.to_str() else {
        return false;
    };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let named = origin.split_once("://").map(|(_, authority)| authority);
    let is_same = match (named, host) {
        (Some(named), Some(host)) => named.eq_ignore_ascii_case(host),
        (None, _) | (_, None) => false,
    };
    is_same || config.guard.public_origin().eq_ignore_ascii_case(origin)
}

/// Returns the visitor, if the page may be shown.
pub(super) async fn admit(
    gateway: &Gateway,
    config: &ActiveConfig,
    parts: &Parts,
    origin: &Origin<'_>,
) -> Result<Visitor, PageRefusal> {
    if let Some(caller) = origin.admitted {
        return Ok(Visitor {
            caller: Arc::clone(caller),
            right: Right::Socket,
        });
    }
    let headers = &parts.headers;
    let is_over_tls = match config.page {
        PageAccess::Off => return Err(unauthorized()),
        PageAccess::AnyLocal => {
            let is_forwarded = FORWARDED.iter().any(|name| headers.contains_key(*name));
            if is_forwarded || !origin.peer.ip().to_canonical().is_loopback() {
                let text = "without `auth` the page is for browsers of this machine alone";
                return Err(PageRefusal::new(StatusCode::FORBIDDEN, "forbidden", text));
            }
            return Ok(Visitor {
                caller: config.guard.anonymous(),
                right: Right::Local,
            });
        }
        PageAccess::Admins { is_over_tls } => is_over_tls,
    };
    if headers.contains_key(header::AUTHORIZATION) {
        let caller = by_token(gateway, config, parts, origin).await?;
        let ticket = match bearer::credential(headers) {
            Ok(Credential::Bearer(token)) => config.guard.page_right(&caller, token, SystemTime::now()),
            Ok(Credential::Nothing | Credential::Else) | Err(_) => None,
        };
        let ticket = ticket.map(|made| made.text);
        return Ok(Visitor {
            caller,
            right: Right::Token { ticket },
        });
    }
    let cookies = headers.get_all(header::COOKIE).iter();
    let cookies = cookies.filter_map(|value| value.to_str().ok());
    let ticket = page_cookie::value(cookies, cookie_name(is_over_tls))
        .and_then(|sealed| gateway.shared.sealer.open_page_ticket(sealed))
        .ok_or_else(unauthorized)?;
    let admin = config.guard.page_admin(&ticket, SystemTime::now());
    let caller = admin.ok_or_else(unauthorized)?;
    Ok(Visitor {
        caller,
        right: Right::Cookie { ticket },
    })
}

/// Returns the admin whose token a request has.
async fn by_token(
    gateway: &Gateway,
    config: &ActiveConfig,
    parts: &Parts,
    origin: &Origin<'_>,
) -> Result<Arc<Caller>, PageRefusal> {
    let from = (origin.peer, None);
    let now = gateway.clock.now();
    let caller = gateway
        .authenticate(config, parts, from, AuthTarget::Page, now)
        .await;
    let caller = caller.map_err(|refusal| refused(&refusal))?;
    if !caller.is_admin() {
        let text = "this token has no right to the page: it needs `admin: true`, or the scope `admin_scope`";
        return Err(PageRefusal::new(StatusCode::FORBIDDEN, "forbidden", text));
    }
    Ok(caller)
}

fn refused(refusal: &Refusal) -> PageRefusal {
    let status = refusal.status();
    let reason = match status {
        StatusCode::UNAUTHORIZED => "unauthorized",
        StatusCode::FORBIDDEN => "forbidden",
        StatusCode::TOO_MANY_REQUESTS => "too_many_requests",
        _ => "not_available",
    };
    PageRefusal::new(status, reason, refusal.text())
}

fn unauthorized() -> PageRefusal {
    let text = "sign in first: open /ui/ in a browser, or send the token of an admin";
    PageRefusal::new(StatusCode::UNAUTHORIZED, "unauthorized", text)
}

/// Signs an admin in, by the token that the form of the page has sent.
pub(super) async fn sign_in(
    gateway: &Gateway,
    config: &ActiveConfig,
    parts: &Parts,
    body: &mut RequestBody,
    origin: &Origin<'_>,
) -> Result<Response<Body>, PageRefusal> {
    let PageAccess::Admins { is_over_tls } = config.page else {
        return Ok(see_page());
    };
    let body = body.read(MAX_BODY).await.map_err(|refusal| refused(&refusal))?;
    let mut fields = url::form_urlencoded::parse(&body);
    let token = fields.find(|(name, _)| name == "token");
    let token = token
        .map(|(_, token)| token.trim().to_owned())
        .unwrap_or_default();
    let mut shown = Parts::clone(parts);
    shown.headers = HeaderMap::new();
    if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {token}")) {
        value.set_sensitive(true);
        shown.headers.insert(header::AUTHORIZATION, value);
    }
    let caller = match by_token(gateway, config, &shown, origin).await {
        Ok(caller) => caller,
        Err(refusal) => {
            tracing::warn!(peer = %origin.peer, why = %refusal.text, "sign-in at the page refused");
            return Ok(form(refusal.status, Some(&refusal.text)));
        }
    };
    let made = config
        .guard
        .page_ticket(&caller, token.as_bytes(), SystemTime::now());
    let sealed =
        made.and_then(|made| Some((gateway.shared.sealer.seal_page_ticket(&made.text)?, made.lasts)));
    let Some((sealed, lasts)) = sealed else {
        let why = "this token cannot be kept in a cookie: its scopes are too many";
        return Ok(form(StatusCode::FORBIDDEN, Some(why)));
    };
    tracing::info!(principal = %caller.principal.as_str(), peer = %origin.peer, "signed in at the page");
    let mut response = see_page();
    set_cookie(&mut response, config, is_over_tls, &sealed, lasts.as_secs());
    Ok(response)
}

/// Makes the browser forget the cookie.
pub(super) fn sign_out(config: &ActiveConfig) -> Response<Body> {
    let mut response = respond::empty(StatusCode::NO_CONTENT);
    if let PageAccess::Admins { is_over_tls } = config.page {
        set_cookie(&mut response, config, is_over_tls, "", 0);
    }
    response
}

fn see_page() -> Response<Body> {
    let mut response = respond::empty(StatusCode::SEE_OTHER);
    let to = HeaderValue::from_static("./");
    response.headers_mut().insert(header::LOCATION, to);
    response
}

fn cookie_name(is_over_tls: bool) -> &'static str {
    match is_over_tls {
        true => page_cookie::OVER_TLS,
        false => page_cookie::PLAIN,
    }
}

fn set_cookie(
    response: &mut Response<Body>,
    config: &ActiveConfig,
    is_over_tls: bool,
    value: &str,
    lasts: u64,
) {
    let name = cookie_name(is_over_tls);
    let path = &config.public_path;
    // A name that begins with `__Host-` is for all paths.
    let scope = match is_over_tls {
        true => "Path=/; Secure".to_owned(),
        false if path.chars().all(COOKIE_PATH) => format!("Path={path}/ui"),
        false => "Path=/".to_owned(),
    };
    let cookie = format!("{name}={value}; {scope}; HttpOnly; SameSite=Strict; Max-Age={lasts}");
    if let Ok(mut cookie) = HeaderValue::from_str(&cookie) {
        cookie.set_sensitive(true);
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
}

/// Returns the form of the sign-in. It needs no file of the page, and runs no script.
pub(super) fn form(status: StatusCode, why: Option<&str>) -> Response<Body> {
    let why = why.map(|why| format!("<p role=\"alert\">{}</p>", super::state_table::escaped(why)));
    let text =
        FORM.replacen("<!-- style -->", FORM_STYLE, 1)
            .replacen("<!-- why -->", &why.unwrap_or_default(), 1);
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    let mut response = with_type(status, html, text.into());
    let style = STANDARD.encode(digest::digest(&digest::SHA256, FORM_STYLE.as_bytes()));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    );
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    headers.insert(
        HeaderName::from_static("x-robots-tag"),
        HeaderValue::from_static("noindex"),
    );
    response
}
