//! Access to the page: by which visitor, and from where.

use rustix::process::Signal;
use testkit::client::raw_http::request;
use testkit::{Issuer, McpClient, Result, Rialto};

use crate::fixture::{House, STUB, audited, get, json, send};

/// Paths that must show nothing to a caller without the right.
const PATHS: [&str; 7] = [
    "/ui",
    "/ui/",
    "/ui/app.js",
    "/ui/api/state",
    "/ui/api/events",
    "/ui/api/destination/files",
    "/ui/api/setup",
];

#[tokio::test]
async fn local_browser_sees_the_page_where_there_is_no_auth() -> Result<()> {
    let rialto = Rialto::with_config(STUB).await?;
    let shell = get(&rialto, "/ui/").await?;
    assert_eq!(shell.status, 200);
    assert_eq!(shell.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(shell.header("cache-control"), Some("no-store"));
    for (header, wanted) in [
        ("content-security-policy", "frame-ancestors 'none'"),
        ("content-security-policy", "default-src 'self'"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        let value = shell.header(header).unwrap_or_default();
        assert!(value.contains(wanted), "{header}: {value}");
    }
    assert!(
        shell.body_text().contains("<td>files</td>"),
        "{}",
        shell.body_text()
    );
    let moved = get(&rialto, "/ui").await?;
    assert_eq!((moved.status, moved.header("location")), (308, Some("ui/")));
    let script = get(&rialto, "/ui/app.js").await?;
    assert_eq!(script.status, 200);
    let tag = script.header("etag").expect("a tag");
    let known = send(&rialto, "GET", "/ui/app.js", &[("If-None-Match", tag)], "").await?;
    assert_eq!(known.status, 304);
    assert_eq!(get(&rialto, "/ui/none").await?.status, 404);
    Ok(())
}

#[tokio::test]
async fn requests_of_other_sites_and_other_ports_are_refused() -> Result<()> {
    let rialto = Rialto::with_config(STUB).await?;
    for headers in [
        &[("Origin", "http://localhost:5173")][..],
        &[("Origin", "https://evil.example.com")],
        &[("Origin", "null")],
        &[("Sec-Fetch-Site", "cross-site")],
        &[("Sec-Fetch-Site", "same-site")],
        &[("X-Forwarded-For", "203.0.113.7")],
    ] {
        let response = send(&rialto, "GET", "/ui/api/state", headers, "").await?;
        assert_eq!(response.status, 403, "{headers:?}");
        assert!(!response.body_text().contains("files"), "{headers:?}");
        assert_eq!(
            response.header("access-control-allow-origin"),
            None,
            "{headers:?}"
        );
    }
    let own = [("Origin", "http://127.0.0.1"), ("Sec-Fetch-Site", "same-origin")];
    let response = send(&rialto, "GET", "/ui/api/state", &own, "").await?;
    assert_eq!(response.status, 200);
    assert_eq!(response.header("access-control-allow-origin"), None);
    // A name that was made to lead here.
    let mut raw = rialto.raw().await?;
    let rebound = "GET /ui/api/state HTTP/1.1\r\nHost: evil.example.com\r\n\r\n";
    assert_eq!(raw.exchange(rebound).await?.status, 403);
    // What asks whether another site may: it may not.
    let preflight = [
        ("Origin", "http://localhost:5173"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "x-rialto-page"),
    ];
    let response = send(
        &rialto,
        "OPTIONS",
        "/ui/api/destination/files/restart",
        &preflight,
        "",
    )
    .await?;
    assert_eq!(response.status, 403);
    assert_eq!(response.header("access-control-allow-headers"), None);
    Ok(())
}

#[tokio::test]
async fn caller_without_the_right_is_shown_nothing() -> Result<()> {
    let house = House::start().await?;
    let (admin, caller) = (&house.admin.token, &house.caller.token);
    for path in PATHS {
        let response = get(&house.rialto, path).await?;
        assert_eq!(response.status, 401, "{path}");
        assert!(!response.body_text().contains("files"), "{path}");
        let bearer = format!("Bearer {caller}");
        let response = send(&house.rialto, "GET", path, &[("Authorization", &bearer)], "").await?;
        assert_eq!(response.status, 403, "{path}: the token of a caller");
        assert!(!response.body_text().contains("files"), "{path}");
        let response = send(&house.rialto, "GET", path, &[("Cookie", "rialto-page=x")], "").await?;
        assert_eq!(response.status, 401, "{path}: a made-up cookie");
    }
    let form = get(&house.rialto, "/ui/").await?.body_text();
    assert!(form.contains("action=\"sign-in\""), "{form}");
    let bearer = format!("Bearer {admin}");
    let response = send(
        &house.rialto,
        "GET",
        "/ui/api/state",
        &[("Authorization", &bearer)],
        "",
    )
    .await?;
    assert_eq!(response.status, 200);
    Ok(())
}

#[tokio::test]
async fn admin_signs_in_with_a_form_and_out_again() -> Result<()> {
    let house = House::start().await?;
    let signed_in = house.send_form(&house.admin.token).await?;
    assert_eq!(
        (signed_in.status, signed_in.header("location")),
        (303, Some("./"))
    );
    let cookie = signed_in.header("set-cookie").expect("a cookie").to_owned();
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/ui;", "Max-Age=43200"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    assert!(!cookie.contains(&house.admin.token), "{cookie}");
    let cookie = house.cookie().await?;
    let state = send(&house.rialto, "GET", "/ui/api/state", &[("Cookie", &cookie)], "").await?;
    assert_eq!(state.status, 200);
    assert_eq!(json(&state)["page"]["signed_in"], "root");
    let refused = house.send_form(&house.caller.token).await?;
    assert_eq!(refused.status, 403, "{}", refused.body_text());
    let unknown = house.send_form("rialto_nothing").await?;
    assert_eq!(unknown.status, 401);
    assert!(unknown.header("set-cookie").is_none());
    // A form of another site.
    let foreign = [
        ("Origin", "https://evil.example.com"),
        ("Sec-Fetch-Site", "cross-site"),
    ];
    let body = format!("token={}", house.admin.token);
    let refused = send(&house.rialto, "POST", "/ui/sign-in", &foreign, &body).await?;
    assert_eq!(refused.status, 403);
    let headers = [
        ("Cookie", cookie.as_str()),
        ("Sec-Fetch-Site", "same-origin"),
        ("X-Rialto-Page", "1"),
    ];
    let out = send(&house.rialto, "POST", "/ui/sign-out", &headers, "").await?;
    assert_eq!(out.status, 204);
    assert!(
        out.header("set-cookie")
            .is_some_and(|cookie| cookie.contains("Max-Age=0"))
    );
    Ok(())
}

/// The cookie of the page is no credential anywhere else.
#[tokio::test]
async fn cookie_of_the_page_opens_no_endpoint() -> Result<()> {
    let house = House::start().await?;
    let cookie = house.cookie().await?;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let headers = [
        ("Cookie", cookie.as_str()),
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
    ];
    let refused = send(&house.rialto, "POST", "/files/mcp", &headers, body).await?;
    assert_eq!(refused.status, 401);
    let refused = send(&house.rialto, "GET", "/metrics", &headers, "").await?;
    assert_eq!(refused.status, 401);
    Ok(())
}

#[tokio::test]
async fn guessing_of_tokens_at_the_form_is_limited() -> Result<()> {
    let admin = testkit::token::token("root");
    let config = format!(
        "limits: {{ refused_credentials_per_minute: 3 }}\nauth:\n  tokens:\n    - {{ name: root, hash: \"{}\", admin: true }}\n{STUB}",
        admin.hash
    );
    let house = House {
        rialto: Rialto::with_config(&config).await?,
        caller: admin.clone(),
        admin,
    };
    let mut statuses = Vec::new();
    for number in 0..8 {
        statuses.push(house.send_form(&format!("rialto_{number}")).await?.status);
    }
    assert!(statuses.contains(&401) && statuses.contains(&429), "{statuses:?}");
    Ok(())
}

#[tokio::test]
async fn scope_of_an_issuer_makes_an_admin() -> Result<()> {
    let issuer = Issuer::start().await?;
    let config = format!(
        "auth:\n  jwt:\n    issuer: {}\n    audience: rialto\n    admin_scope: mcp:admin\n{STUB}",
        issuer.url()
    );
    let rialto = Rialto::with_config(&config).await?;
    let admin = issuer.token(
        "alice",
        "rialto",
        serde_json::json!({ "scope": "mcp:admin other" }),
    );
    let caller = issuer.token("bob", "rialto", serde_json::json!({ "scope": "other" }));
    for (token, status) in [(&admin, 200), (&caller, 403)] {
        let bearer = format!("Bearer {token}");
        let response = send(&rialto, "GET", "/ui/api/state", &[("Authorization", &bearer)], "").await?;
        assert_eq!(response.status, status);
    }
    let house = House {
        admin: testkit::token::Token {
            token: admin,
            hash: String::new(),
        },
        caller: testkit::token::Token {
            token: caller,
            hash: String::new(),
        },
        rialto,
    };
    let cookie = house.cookie().await?;
    let state = send(&house.rialto, "GET", "/ui/api/state", &[("Cookie", &cookie)], "").await?;
    assert_eq!(
        json(&state)["page"]["signed_in"],
        format!("{}#alice", issuer.url())
    );
    assert_eq!(house.send_form(&house.caller.token).await?.status, 403);
    assert!(audited(&house.rialto).is_empty());
    Ok(())
}

#[tokio::test]
async fn page_is_off_where_it_is_switched_off_and_where_other_machines_come_without_auth() -> Result<()> {
    let off = format!("ui: false\n{STUB}");
    let public = format!("public_url: http://127.0.0.1\n{STUB}");
    let behind_proxy = format!("allowed_hosts: [mcp.example.com]\n{STUB}");
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    let switched_off = ["serve", "--listen", "127.0.0.1:0", "--ui", "off"];
    let for_all = ["serve", "--listen", "0.0.0.0:0", "--allow-unauthenticated"];
    for (config, args) in [
        (off.as_str(), &serve[..]),
        (STUB, &switched_off[..]),
        (STUB, &for_all[..]),
        (public.as_str(), &serve[..]),
        (behind_proxy.as_str(), &serve[..]),
    ] {
        let launcher = Rialto::launcher().verb(args).args(&["--log-format", "json"]);
        let rialto = launcher.config(config).start().await?;
        for path in PATHS {
            let mut raw = rialto.raw().await?;
            let response = raw.exchange(request("GET", path, &[], "")).await?;
            assert_eq!(response.status, 404, "{args:?} {path}: {}", response.body_text());
        }
    }
    Ok(())
}

/// A stream lasts for hours, and a right that is withdrawn ends it too.
#[tokio::test]
async fn stream_of_the_page_ends_with_the_right_to_it() -> Result<()> {
    /// Events that may still come before the reload is done.
    const LAST: usize = 8;
    let house = House::start().await?;
    let cookie = house.cookie().await?;
    let bearer = format!("Bearer {}", house.admin.token);
    let url = format!("http://{}/ui/api/events", house.rialto.address());
    let mut streams = Vec::new();
    for (name, value) in [("cookie", &cookie), ("authorization", &bearer)] {
        let client = McpClient::connect(&url).await?.with_header(name, value);
        let mut stream = client.get_stream(None).await?;
        assert!(stream.next().await?.is_some(), "{name}");
        streams.push(stream);
    }
    house.withdraw_the_right()?;
    house.rialto.signal(Signal::HUP);
    for mut stream in streams {
        let mut events = 0;
        while stream.next().await?.is_some() {
            events += 1;
            assert!(events <= LAST, "the stream goes on");
        }
    }
    let state = send(&house.rialto, "GET", "/ui/api/state", &[("Cookie", &cookie)], "").await?;
    assert_eq!(state.status, 401);
    Ok(())
}

/// Connections of visitors that were shown the form go before those of callers that were let in.
#[tokio::test]
async fn connections_that_only_saw_the_form_make_room() -> Result<()> {
    let house = House::start_with("limits: { connections: 8 }\n").await?;
    let hello = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#;
    let bearer = format!("Bearer {}", house.caller.token);
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
    ];
    let mut admitted = house.rialto.raw().await?;
    let opened = admitted
        .exchange(request("POST", "/files/mcp", &headers, hello))
        .await?;
    assert_eq!(opened.status, 200, "{}", opened.body_text());
    let mut held = Vec::new();
    for path in ["/ui/", "/ui/api/state", "/ui/none"].into_iter().cycle().take(12) {
        let mut raw = house.rialto.raw().await?;
        assert_eq!(
            raw.exchange(request("GET", path, &[], "")).await?.status,
            401,
            "{path}"
        );
        held.push(raw);
    }
    let again = admitted
        .exchange(request("POST", "/files/mcp", &headers, hello))
        .await?;
    assert_eq!(again.status, 200, "the connection is still there");
    Ok(())
}

/// An admin at another machine reaches the page by an address that is no configured origin.
#[tokio::test]
async fn admin_signs_in_by_any_address_of_the_listener() -> Result<()> {
    let admin = testkit::token::token("root");
    let config = format!(
        "auth:\n  tokens:\n    - {{ name: root, hash: \"{}\", admin: true }}\n{STUB}",
        admin.hash
    );
    let launcher = Rialto::launcher().verb(&["serve", "--listen", "0.0.0.0:0"]);
    let rialto = launcher
        .args(&["--log-format", "json"])
        .config(&config)
        .start()
        .await?;
    let form = |path: &str, origin: &str, body: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: 192.0.2.7:3000\r\nOrigin: {origin}\r\nX-Rialto-Page: 1\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let body = format!("token={}", admin.token);
    let own = "http://192.0.2.7:3000";
    let mut raw = rialto.raw().await?;
    let foreign = raw
        .exchange(form("/ui/sign-in", "http://192.0.2.8:3000", &body))
        .await?;
    assert_eq!(foreign.status, 403);
    let mut raw = rialto.raw().await?;
    let signed_in = raw.exchange(form("/ui/sign-in", own, &body)).await?;
    assert_eq!(signed_in.status, 303, "{}", signed_in.body_text());
    let cookie = signed_in
        .header("set-cookie")
        .and_then(|cookie| cookie.split(';').next());
    let cookie = cookie.expect("a cookie").to_owned();
    let mut raw = rialto.raw().await?;
    let out = form("/ui/sign-out", own, "").replace("\r\n\r\n", &format!("\r\nCookie: {cookie}\r\n\r\n"));
    assert_eq!(raw.exchange(out).await?.status, 204);
    // At an endpoint the origin is foreign as ever.
    let mut raw = rialto.raw().await?;
    assert_eq!(raw.exchange(form("/files/mcp", own, "{}")).await?.status, 403);
    Ok(())
}
