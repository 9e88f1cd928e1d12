//! Opening the page to sign in at.
//!
//! The address comes from the remote server's metadata and is handed to another program. So it is
//! checked once more here, at the last step: http or https, nothing else. No shell is involved. The
//! address is announced as well, for a machine without a browser.

use std::fmt;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

type OpenPage = Arc<dyn Fn(&Url) -> std::io::Result<()> + Send + Sync>;
type Announce = Arc<dyn Fn(&str) + Send + Sync>;

/// How this process reaches the browser of the person in front of it.
#[derive(Clone)]
pub struct Browser {
    open: OpenPage,
    announce: Announce,
    /// How long the person may take to sign in.
    pub timeout: Duration,
}

impl Browser {
    /// Returns the browser of the desktop, with the address announced on stderr.
    pub fn desktop() -> Self {
        Self::opened_by(|url| open::that_detached(url.as_str()))
    }

    /// Opens a page in the browser of the desktop.
    pub fn open(url: &Url) -> std::io::Result<()> {
        open::that_detached(url.as_str())
    }

    /// Returns a browser whose pages this function opens. The function may block.
    pub fn opened_by(open: impl Fn(&Url) -> std::io::Result<()> + Send + Sync + 'static) -> Self {
        Self {
            open: Arc::new(open),
            announce: Arc::new(write_to_stderr),
            timeout: Duration::from_secs(300),
        }
    }

    /// Announces the address elsewhere than on stderr.
    #[must_use]
    pub fn announcing(mut self, announce: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.announce = Arc::new(announce);
        self
    }

    /// Shows the page. That no browser opens is no failure: the address was announced.
    pub(crate) async fn show(&self, url: &Url) {
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            return;
        }
        (self.announce)(&format!("sign in at: {url}"));
        let (open, url) = (self.open.clone(), url.clone());
        let opened = tokio::task::spawn_blocking(move || open(&url)).await;
        match opened {
            Ok(Ok(())) => {}
            Ok(Err(error)) => (self.announce)(&format!(
                "no browser could be opened ({error}); please open the address yourself"
            )),
            Err(_) => (self.announce)("no browser could be opened; please open the address yourself"),
        }
    }
}

impl fmt::Debug for Browser {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Browser")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

fn write_to_stderr(text: &str) {
    // With stderr closed there is no other place to write to.
    let _ = writeln!(std::io::stderr().lock(), "rialto: {text}");
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn browser_opens_and_announces_web_pages_only() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (opened, announced) = (seen.clone(), seen.clone());
        let browser = Browser::opened_by(move |url| {
            opened.lock().unwrap().push(format!("opened {url}"));
            Ok(())
        })
        .announcing(move |text| announced.lock().unwrap().push(text.to_owned()));
        for url in [
            "javascript:alert(1)",
            "file:///etc/passwd",
            "data:text/html,x",
            "vscode://x",
        ] {
            browser.show(&Url::parse(url).unwrap()).await;
        }
        assert!(seen.lock().unwrap().is_empty());
        browser
            .show(&Url::parse("https://auth.example.com/a").unwrap())
            .await;
        assert_eq!(
            *seen.lock().unwrap(),
            [
                "sign in at: https://auth.example.com/a",
                "opened https://auth.example.com/a"
            ]
        );
    }
}
