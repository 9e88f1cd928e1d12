//! Why no connection was made, in words that name what to change.

use rustls::{CertificateError, Error, InvalidMessage};

/// How a certificate becomes trusted, where it is not.
const TRUST: &str = "`ca_file` (--ca-file FILE) names certificates to trust, in PEM";

/// Returns why a TLS handshake failed.
pub(super) fn of_tls(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(certificate) => of_certificate(certificate),
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "its answer is not TLS; a server without TLS needs an http:// address".to_owned()
        }
        // The enum grows with versions of the library.
        other => other.to_string(),
    }
}

fn of_certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer => {
            format!("its certificate was issued by an authority that is not trusted here; {TRUST}")
        }
        CertificateError::BadSignature => format!(
            "its certificate has another signature than the authority of that name would make; {TRUST}, if the \
             authority was replaced"
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("its certificate is for another name than the address has: {error}")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("its certificate has expired, or the clock of this machine is wrong: {error}")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("its certificate is not valid yet, or the clock of this machine is wrong: {error}")
        }
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            format!(
                "its certificate is that of an authority (CA:TRUE), which no server may present. Make one with \
                 `openssl req -x509 -addext basicConstraints=critical,CA:FALSE …`; {TRUST}"
            )
        }
        // The enum grows with versions of the library.
        other => format!("its certificate is not accepted: {other}; {TRUST}"),
    }
}

/// Returns what an answer that is no HTTP means on a connection without TLS.
pub(super) const fn of_no_http() -> &'static str {
    "what came is not HTTP; a server with TLS needs an https:// address"
}

/// Returns which proxy was used, so that its failure is not taken for one of the server.
pub(super) fn of_proxy(proxy: &http::Uri, what: &str) -> String {
    let host = proxy.host().unwrap_or_default();
    let port = proxy.port().map(|port| format!(":{port}")).unwrap_or_default();
    let scheme = proxy.scheme_str().unwrap_or("http");
    format!(
        "the proxy {scheme}://{host}{port}: {what} (HTTPS_PROXY, HTTP_PROXY or ALL_PROXY names it; NO_PROXY names \
         hosts without one)"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::OtherError;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("CaUsedAsEndEntity")]
    struct CaUsedAsEndEntity;

    #[test]
    fn certificate_that_is_not_trusted_is_answered_with_the_flag_that_trusts_it() {
        let authority = CertificateError::Other(OtherError(Arc::new(CaUsedAsEndEntity)));
        for error in [
            CertificateError::UnknownIssuer,
            CertificateError::BadSignature,
            authority,
        ] {
            let text = of_tls(&Error::InvalidCertificate(error));
            assert!(text.contains("--ca-file"), "{text}");
        }
        for error in [CertificateError::NotValidForName, CertificateError::Expired] {
            let text = of_tls(&Error::InvalidCertificate(error));
            assert!(!text.contains("--ca-file"), "trusting it would not help: {text}");
        }
    }

    #[test]
    fn server_without_tls_is_recognised() {
        let text = of_tls(&Error::InvalidMessage(InvalidMessage::InvalidContentType));
        assert!(text.contains("http://"), "{text}");
    }

    #[test]
    fn proxy_is_named_without_its_password() {
        let proxy = "http://user:geheim@proxy.corp:3128".parse().expect("an address");
        let text = of_proxy(&proxy, "Connection refused");
        assert!(
            text.starts_with("the proxy http://proxy.corp:3128: Connection refused"),
            "{text}"
        );
        assert!(!text.contains("geheim"), "{text}");
    }
}
