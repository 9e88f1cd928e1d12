use super::*;
use crate::settings::{Network, ProxySettings, StaticToken, TokenName};
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};

fn guard(auth: AuthSettings) -> Guard {
    let base = PublicUrl::parse("https://mcp.example.com").unwrap();
    Guard::new(&auth, base, ["demo", "other"].into_iter(), None, Clock::new())
}

fn token(name: &str, token: &str) -> StaticToken {
    StaticToken {
        name: TokenName::parse(name).unwrap(),
        hash: tokens::hash_of(token.as_bytes()),
        destinations: Some(["demo".to_owned()].into()),
        expires: None,
        admin: false,
    }
}

fn with_tokens() -> AuthSettings {
    AuthSettings {
        tokens: vec![token("alice", "a"), token("bob", "b")],
        ..AuthSettings::default()
    }
}

async fn admit(
    guard: &Guard,
    target: AuthTarget<'_>,
    headers: &[(HeaderName, &str)],
    query: Option<&str>,
) -> Result<String, Refusal> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(name, HeaderValue::from_str(value).unwrap());
    }
    let auth_request = AuthRequest {
        headers: &map,
        query,
        peer: "127.0.0.1".parse().unwrap(),
        moment: Moment::START,
        now: SystemTime::UNIX_EPOCH,
    };
    let caller = match guard.open_to(target) {
        Some(anonymous) => anonymous,
        None => match guard.admit(&auth_request, target)? {
            Admission::Known(caller) => caller,
            Admission::Unchecked(token) => guard.check(token, auth_request.now, target).await?,
        },
    };
    Ok(caller.principal.as_str().to_owned())
}

const DEMO: AuthTarget<'static> = AuthTarget::Destination("demo", EndpointPath::Named);

fn status(result: Result<String, Refusal>) -> u16 {
    result.map_or_else(|refusal| refusal.status().as_u16(), |_| 200)
}

#[tokio::test]
async fn every_caller_is_anonymous_without_authentication() {
    let guard = guard(AuthSettings::default());
    let shown = [(AUTHORIZATION, "Bearer anything")];
    assert_eq!(
        admit(&guard, DEMO, &shown, None).await.as_deref(),
        Ok("anonymous")
    );
}

#[tokio::test]
async fn a_token_opens_what_it_is_for() {
    let guard = guard(with_tokens());
    let target = |name| AuthTarget::Destination(name, EndpointPath::Named);
    let shows = |text| [(AUTHORIZATION, text)];
    assert_eq!(
        admit(&guard, DEMO, &shows("Bearer b"), None).await.as_deref(),
        Ok("bob")
    );
    assert_eq!(
        status(admit(&guard, target("other"), &shows("Bearer b"), None).await),
        403
    );
    assert_eq!(status(admit(&guard, DEMO, &shows("Bearer c"), None).await), 401);
    assert_eq!(status(admit(&guard, DEMO, &shows("Basic b"), None).await), 401);
    assert_eq!(status(admit(&guard, DEMO, &[], None).await), 401);
}

#[tokio::test]
async fn a_token_in_the_address_is_refused_even_beside_a_good_one() {
    let guard = guard(with_tokens());
    let good = [(AUTHORIZATION, "Bearer a")];
    assert_eq!(
        status(admit(&guard, DEMO, &good, Some("access_token=a")).await),
        401
    );
    assert_eq!(
        status(admit(&guard, DEMO, &[], Some("access_token=a")).await),
        401
    );
}

#[tokio::test]
async fn two_authorizations_are_a_bad_request() {
    let guard = guard(with_tokens());
    let twice = [(AUTHORIZATION, "Bearer a"), (AUTHORIZATION, "Bearer b")];
    assert_eq!(status(admit(&guard, DEMO, &twice, None).await), 400);
}

#[tokio::test]
async fn paths_of_the_gateway_are_open_only_if_configured() {
    let closed = guard(with_tokens());
    let target = AuthTarget::Gateway(OpenPath::Ready);
    assert_eq!(status(admit(&closed, target, &[], None).await), 401);
    assert_eq!(
        admit(&closed, target, &[(AUTHORIZATION, "Bearer a")], None)
            .await
            .as_deref(),
        Ok("alice")
    );
    let open = guard(AuthSettings {
        public: [OpenPath::Ready].into(),
        ..with_tokens()
    });
    assert_eq!(status(admit(&open, target, &[], None).await), 200);
    assert_eq!(
        status(admit(&open, AuthTarget::Gateway(OpenPath::Metrics), &[], None).await),
        401
    );
}

#[tokio::test]
async fn proxy_names_its_users_and_a_stranger_names_none() {
    let user = HeaderName::from_static("x-user");
    let proxy = |from: &str| {
        guard(AuthSettings {
            proxy: Some(ProxySettings {
                header: user.clone(),
                from: vec![Network::parse(from).unwrap()],
            }),
            ..with_tokens()
        })
    };
    let says = [(user.clone(), "alice")];
    let both = [(user.clone(), "carol"), (AUTHORIZATION, "Bearer b")];
    let here = proxy("127.0.0.1");
    assert_eq!(
        admit(&here, DEMO, &says, None).await.as_deref(),
        Ok("proxy#alice")
    );
    assert_eq!(
        admit(&here, DEMO, &both, None).await.as_deref(),
        Ok("proxy#carol")
    );
    let elsewhere = proxy("10.0.0.0/8");
    assert_eq!(status(admit(&elsewhere, DEMO, &says, None).await), 401);
    assert_eq!(admit(&elsewhere, DEMO, &both, None).await.as_deref(), Ok("bob"));
}
