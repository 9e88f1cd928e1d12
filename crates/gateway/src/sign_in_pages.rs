//! Pages at which the user of this machine signs in at the servers of an aggregate's members.
//!
//! A gateway has no user in front of it, but a client that shows addresses has one. Its user is
//! sent to a page of this gateway, which begins the sign-in when it is opened, and leads on to the
//! authorization server. The answer of that server comes to a port of this machine. So there are
//! pages only where the gateway is reached from this machine alone, and without `auth`: a caller
//! could otherwise put an account of its own in the place of the operator's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use oauth::Browser;
use parking_lot::Mutex;
use tokio::sync::watch;
use url::Url;

use crate::tasks;

/// How long the authorization server may take until its address is known.
const ADDRESS_TIME: Duration = Duration::from_secs(30);

/// All pages, by destination.
#[derive(Debug)]
pub(crate) struct SignInPages {
    /// Where this gateway is reached; `None` where there are no pages.
    origin: Option<String>,
    pages: Mutex<BTreeMap<String, Page>>,
}

#[derive(Debug)]
struct Page {
    /// The last part of its address, which cannot be guessed.
    ticket: String,
    sign_in: oauth::SignIn,
    /// The sign-in that was begun last.
    begun: Option<watch::Receiver<Progress>>,
}

/// How far a sign-in is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Progress {
    Begun,
    At(Url),
    Ended(Result<(), String>),
}

/// What a page that was opened shows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// It leads on to the authorization server.
    Elsewhere(Url),
    /// There was nothing to do, or it is done.
    SignedIn,
    /// Signing in has failed, for this reason.
    Failed(String),
}

impl SignInPages {
    /// Returns no pages yet. `origin` is where this gateway is reached, if it may have pages.
    pub(crate) fn new(origin: Option<String>) -> Self {
        Self {
            origin,
            pages: Mutex::default(),
        }
    }

    /// Returns the address of the page for a destination; `None` if there are no pages here.
    pub(crate) fn address(&self, destination: &str, sign_in: &oauth::SignIn) -> Option<Arc<str>> {
        let origin = self.origin.as_deref()?;
        let mut pages = self.pages.lock();
        let is_same = pages
            .get(destination)
            .is_some_and(|page| page.sign_in == *sign_in);
        if !is_same {
            let page = Page {
                ticket: uuid::Uuid::new_v4().simple().to_string(),
                sign_in: sign_in.clone(),
                begun: None,
            };
            pages.insert(destination.to_owned(), page);
        }
        let ticket = pages.get(destination).map(|page| page.ticket.as_str())?;
        Some(format!("{origin}/sign-in/{ticket}").into())
    }

    /// Returns whether this is the last part of the address of a page.
    pub(crate) fn has(&self, ticket: &str) -> bool {
        self.origin.is_some() && self.pages.lock().values().any(|page| page.ticket == ticket)
    }

    /// Forgets every page: there is `auth` from now on.
    pub(crate) fn clear(&self) {
        self.pages.lock().clear();
    }

    /// Begins the sign-in of a page, unless one goes on. Returns what the page shows; `None` if
    /// there is no such page.
    pub(crate) async fn open(&self, ticket: &str) -> Option<Opened> {
        let mut progress = {
            let mut pages = self.pages.lock();
            let page = pages.values_mut().find(|page| page.ticket == ticket)?;
            let is_over = |begun: &watch::Receiver<Progress>| matches!(*begun.borrow(), Progress::Ended(_));
            match page.begun.clone().filter(|begun| !is_over(begun)) {
                Some(begun) => begun,
                None => page.begun.insert(begin(&page.sign_in)).clone(),
            }
        };
        let known = progress.wait_for(|progress| *progress != Progress::Begun);
        let known = tokio::time::timeout(ADDRESS_TIME, known).await;
        let known = known.ok().and_then(Result::ok).map(|progress| progress.clone());
        Some(match known {
            Some(Progress::At(url)) => Opened::Elsewhere(url),
            Some(Progress::Ended(Ok(()))) => Opened::SignedIn,
            Some(Progress::Ended(Err(why))) => Opened::Failed(why),
            Some(Progress::Begun) | None => {
                Opened::Failed("the authorization server has not answered in time".to_owned())
            }
        })
    }
}

/// Begins a sign-in whose browser is the one that has opened the page.
fn begin(sign_in: &oauth::SignIn) -> watch::Receiver<Progress> {
    let (progress, begun) = watch::channel(Progress::Begun);
    let progress = Arc::new(progress);
    let shown = Arc::clone(&progress);
    let browser = Browser::opened_by(move |url| {
        shown.send_replace(Progress::At(url.clone()));
        Ok(())
    });
    // The address is shown by the page alone.
    let sign_in = sign_in.in_browser(browser.announcing(|_| {}), false);
    tasks::spawn("sign-in", async move {
        let ended = match sign_in.login().await {
            Ok(_) => Ok(()),
            Err(error) => {
                tracing::warn!(%error, "a sign-in that a client's user has begun has failed");
                Err(error.to_string())
            }
        };
        progress.send_replace(Progress::Ended(ended));
    });
    begun
}
