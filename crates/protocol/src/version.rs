//! The dated revisions of the protocol and the two eras they fall into.

/// A revision of the specification that Rialto knows, in order of date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 2024-11-05: HTTP with SSE.
    V2024_11_05,
    /// 2025-03-26: Streamable HTTP.
    V2025_03_26,
    /// 2025-06-18: the version header, structured content.
    V2025_06_18,
    /// 2025-11-25: tasks, URL elicitation.
    V2025_11_25,
    /// 2026-07-28: no sessions, every request describes itself.
    V2026_07_28,
}

/// Legacy revisions open with an `initialize` handshake; modern ones describe every request by
/// itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Era {
    /// 2024-11-05 to 2025-11-25.
    Legacy,
    /// 2026-07-28 and later.
    Modern,
}

/// One value for each era.
#[derive(Debug, Clone, Default)]
pub struct PerEra<T> {
    legacy: T,
    modern: T,
}

impl<T> PerEra<T> {
    /// Returns the values that a function gives for each era.
    pub fn new(mut value: impl FnMut(Era) -> T) -> Self {
        Self {
            legacy: value(Era::Legacy),
            modern: value(Era::Modern),
        }
    }

    /// Returns the value of an era.
    pub const fn get(&self, era: Era) -> &T {
        match era {
            Era::Legacy => &self.legacy,
            Era::Modern => &self.modern,
        }
    }
}

/// A text that names no era.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownEra;

impl std::str::FromStr for Era {
    type Err = UnknownEra;

    fn from_str(name: &str) -> Result<Self, UnknownEra> {
        let mut all = Self::ALL.into_iter();
        all.find(|era| era.as_str() == name).ok_or(UnknownEra)
    }
}

impl Era {
    /// Both, the older first.
    pub const ALL: [Self; 2] = [Self::Legacy, Self::Modern];

    /// Returns the one that this is not.
    pub const fn other(self) -> Self {
        match self {
            Self::Legacy => Self::Modern,
            Self::Modern => Self::Legacy,
        }
    }

    /// Returns its name in configuration and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        }
    }

    /// Returns how a server of this era asks its client, and how a client of this era is asked.
    pub const fn questions(self) -> QuestionStyle {
        match self {
            Self::Legacy => QuestionStyle::Requests,
            Self::Modern => QuestionStyle::Results,
        }
    }

    /// Returns how a client of this era learns of changes at its server.
    pub const fn changes(self) -> ChangeStyle {
        match self {
            Self::Legacy => ChangeStyle::Unasked,
            Self::Modern => ChangeStyle::Listen,
        }
    }

    /// Returns how a client of this era chooses the log lines that it gets.
    pub const fn log_levels(self) -> LogLevelStyle {
        match self {
            Self::Legacy => LogLevelStyle::PerSession,
            Self::Modern => LogLevelStyle::PerRequest,
        }
    }

    /// Returns which form tasks have in this era.
    pub const fn tasks(self) -> TaskStyle {
        match self {
            Self::Legacy => TaskStyle::Core,
            Self::Modern => TaskStyle::Extension,
        }
    }

    /// Returns how a client of this era begins: with a session, or with any request.
    pub const fn sessions(self) -> SessionStyle {
        match self {
            Self::Legacy => SessionStyle::Handshake,
            Self::Modern => SessionStyle::None,
        }
    }

    /// Returns when a server of this era learns the capabilities of its client.
    pub const fn capabilities(self) -> CapabilityStyle {
        match self {
            Self::Legacy => CapabilityStyle::AtHandshake,
            Self::Modern => CapabilityStyle::PerRequest,
        }
    }

    /// Returns how a client of this era cancels a call over HTTP.
    pub const fn cancellation(self) -> CancelStyle {
        match self {
            Self::Legacy => CancelStyle::Notification,
            Self::Modern => CancelStyle::EndOfExchange,
        }
    }

    /// Returns which headers of its own a POST of this era has.
    pub const fn post_headers(self) -> HeaderStyle {
        match self {
            Self::Legacy => HeaderStyle::Session,
            Self::Modern => HeaderStyle::Mirrored,
        }
    }

    /// Returns whether a client of this era can take up the stream of a call again after a lost
    /// connection.
    pub const fn lost_streams(self) -> LostStream {
        match self {
            Self::Legacy => LostStream::Resumed,
            Self::Modern => LostStream::Ended,
        }
    }
}

/// How a server asks its client for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionStyle {
    /// By requests of its own, at any time.
    Requests,
    /// By answering a call with `input_required`; the client makes the call again with its answers.
    Results,
}

/// How a client learns of changed lists, updated resources and tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeStyle {
    /// The server sends notifications unasked, and of resources to which the client subscribed.
    Unasked,
    /// The server sends what an open `subscriptions/listen` names.
    Listen,
}

/// How a client chooses the log lines that it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevelStyle {
    /// By `logging/setLevel`, for its whole session.
    PerSession,
    /// By a member of each request, for this request.
    PerRequest,
}

/// Which form tasks have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskStyle {
    /// The core feature of 2025-11-25: the client asks for a task, and gets its outcome by
    /// `tasks/result`.
    Core,
    /// The extension of 2026-07-28: the server may answer with a task, and `tasks/get` has its
    /// outcome and questions.
    Extension,
}

/// How a client begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionStyle {
    /// With `initialize`, which opens a session.
    Handshake,
    /// With any request: each describes itself.
    None,
}

/// When a server learns the capabilities of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapabilityStyle {
    /// Once, with `initialize`.
    AtHandshake,
    /// With each request.
    PerRequest,
}

/// How a client cancels a call over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelStyle {
    /// By `notifications/cancelled`.
    Notification,
    /// By the end of the call's own exchange.
    EndOfExchange,
}

/// Which headers of its own a POST has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderStyle {
    /// Those of the session that the handshake opened.
    Session,
    /// Those that mirror the message.
    Mirrored,
}

/// What becomes of a call whose client loses the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostStream {
    /// The client comes back for the rest with `Last-Event-ID`.
    Resumed,
    /// The client does not come back.
    Ended,
}

impl Version {
    /// The revisions of the legacy era, oldest first.
    pub const LEGACY: [Self; 4] = [
        Self::V2024_11_05,
        Self::V2025_03_26,
        Self::V2025_06_18,
        Self::V2025_11_25,
    ];
    /// The newest revision of the modern era.
    pub const NEWEST_MODERN: Self = Self::V2026_07_28;
    /// The newest revision of the legacy era.
    pub const NEWEST_LEGACY: Self = Self::V2025_11_25;
    /// What a request without a version header is taken to speak (2025-06-18, transports).
    pub const ASSUMED: Self = Self::V2025_03_26;

    /// Every revision there is, oldest first.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::LEGACY.into_iter().chain([Self::NEWEST_MODERN])
    }

    /// Returns the revision of this date.
    pub fn parse(text: &str) -> Option<Self> {
        Self::all().find(|version| version.as_str() == text)
    }

    /// Returns its date.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// Returns the era that it belongs to.
    pub const fn era(self) -> Era {
        match self {
            Self::V2024_11_05 | Self::V2025_03_26 | Self::V2025_06_18 | Self::V2025_11_25 => Era::Legacy,
            Self::V2026_07_28 => Era::Modern,
        }
    }

    /// Streams of this revision begin with a priming event; older clients fail on its empty data,
    /// and newer ones have no event ids at all.
    pub const fn primes_streams(self) -> bool {
        match self {
            Self::V2025_11_25 => true,
            Self::V2024_11_05 | Self::V2025_03_26 | Self::V2025_06_18 | Self::V2026_07_28 => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_date_and_parse_back() {
        for (older, newer) in Version::all().zip(Version::all().skip(1)) {
            assert!(older < newer);
            assert!(older.as_str() < newer.as_str());
        }
        for version in Version::all() {
            assert_eq!(Version::parse(version.as_str()), Some(version));
        }
        assert_eq!(Version::parse("2030-01-01"), None);
    }

    #[test]
    fn value_of_an_era_is_found_by_it_and_its_name_is_read_back() {
        let names = PerEra::new(Era::as_str);
        for era in Era::ALL {
            assert_eq!(*names.get(era), era.as_str());
            assert_eq!(era.as_str().parse(), Ok(era));
        }
        assert_eq!("future".parse::<Era>(), Err(UnknownEra));
    }

    #[test]
    fn eras_have_the_names_of_the_configuration() {
        assert_eq!(Era::ALL.map(Era::as_str), ["legacy", "modern"]);
    }

    #[test]
    fn posts_of_the_modern_era_alone_mirror_the_body() {
        let headers = [HeaderStyle::Session, HeaderStyle::Mirrored];
        assert_eq!(Era::ALL.map(Era::post_headers), headers);
    }
}
