//! The methods Rialto has an opinion about. Everything else is [`Method::Other`] and passes
//! through.

macro_rules! methods {
    ($($name:ident = $text:literal),+ $(,)?) => {
        /// A method.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Method {
            $(#[doc = concat!("`", $text, "`")] $name,)+
            /// Any that Rialto does not know, and that of a response.
            Other,
        }

        impl Method {
            /// All of them, in the order of their discriminants.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+ Self::Other];

            /// Returns the method of this name.
            #[allow(non_upper_case_globals, reason = "a name as a pattern is a constant; it is called as its method")]
            pub fn parse(name: &[u8]) -> Self {
                $(const $name: &[u8] = $text.as_bytes();)+
                // Bytes as patterns become a tree of comparisons, without a call for each name.
                match name { $($name => Self::$name,)+ _ => Self::Other }
            }

            /// Returns the method's name; `None` for one that Rialto does not know.
            pub const fn name(self) -> Option<&'static str> {
                match self { $(Self::$name => Some($text),)+ Self::Other => None }
            }
        }
    };
}

methods! {
    Initialize = "initialize",
    Ping = "ping",
    ToolsList = "tools/list",
    ToolsCall = "tools/call",
    PromptsList = "prompts/list",
    PromptsGet = "prompts/get",
    ResourcesList = "resources/list",
    ResourcesTemplatesList = "resources/templates/list",
    ResourcesRead = "resources/read",
    ResourcesSubscribe = "resources/subscribe",
    ResourcesUnsubscribe = "resources/unsubscribe",
    LoggingSetLevel = "logging/setLevel",
    CompletionComplete = "completion/complete",
    ServerDiscover = "server/discover",
    SubscriptionsListen = "subscriptions/listen",
    SamplingCreateMessage = "sampling/createMessage",
    ElicitationCreate = "elicitation/create",
    RootsList = "roots/list",
    TasksGet = "tasks/get",
    TasksResult = "tasks/result",
    TasksUpdate = "tasks/update",
    TasksCancel = "tasks/cancel",
    TasksList = "tasks/list",
    Initialized = "notifications/initialized",
    Cancelled = "notifications/cancelled",
    Progress = "notifications/progress",
    LogMessage = "notifications/message",
    ToolsListChanged = "notifications/tools/list_changed",
    PromptsListChanged = "notifications/prompts/list_changed",
    ResourcesListChanged = "notifications/resources/list_changed",
    ResourcesUpdated = "notifications/resources/updated",
    RootsListChanged = "notifications/roots/list_changed",
    TasksStatus = "notifications/tasks/status",
    Tasks = "notifications/tasks",
    SubscriptionsAcknowledged = "notifications/subscriptions/acknowledged",
}

impl Method {
    /// Returns the server capability that a request needs, or `None` where the method has none
    /// (2026-07-28, server capabilities). Task methods belong to an extension; see
    /// [`crate::exchange::ServerInfo::tasks`].
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "no other method needs a capability"
    )]
    pub const fn server_capability(self) -> Option<&'static str> {
        match self {
            Self::ToolsList | Self::ToolsCall => Some("tools"),
            Self::PromptsList | Self::PromptsGet => Some("prompts"),
            Self::ResourcesList
            | Self::ResourcesTemplatesList
            | Self::ResourcesRead
            | Self::ResourcesSubscribe
            | Self::ResourcesUnsubscribe => Some("resources"),
            Self::LoggingSetLevel => Some("logging"),
            Self::CompletionComplete => Some("completions"),
            _ => None,
        }
    }

    /// Returns whether a server may ask its client something while it works on this request
    /// (2026-07-28, multi round-trip requests, names the same three for the modern era).
    pub const fn may_ask(self) -> bool {
        matches!(self, Self::ToolsCall | Self::PromptsGet | Self::ResourcesRead)
    }
}

impl Method {
    /// Returns whether a client of the modern era can be asked this, by an answer that wants input
    /// (2026-07-28, multi round-trip requests).
    pub const fn is_input(self) -> bool {
        matches!(
            self,
            Self::SamplingCreateMessage | Self::ElicitationCreate | Self::RootsList
        )
    }

    /// Returns whether this request is about a task that was begun before, and names it.
    pub const fn names_a_task(self) -> bool {
        matches!(
            self,
            Self::TasksGet | Self::TasksResult | Self::TasksUpdate | Self::TasksCancel
        )
    }
}

/// Severity of a log line (RFC 5424), least severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogLevel {
    /// `debug`, the least severe.
    Debug,
    /// `info`
    Info,
    /// `notice`
    Notice,
    /// `warning`
    Warning,
    /// `error`
    Error,
    /// `critical`
    Critical,
    /// `alert`
    Alert,
    /// `emergency`, the most severe.
    Emergency,
}

impl LogLevel {
    /// Returns the level of this name.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "debug" => Self::Debug,
            "info" => Self::Info,
            "notice" => Self::Notice,
            "warning" => Self::Warning,
            "error" => Self::Error,
            "critical" => Self::Critical,
            "alert" => Self::Alert,
            "emergency" => Self::Emergency,
            _ => return None,
        })
    }

    /// Returns its name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_need_the_capability_of_their_family() {
        for (capability, methods) in [
            (Some("tools"), &["tools/list", "tools/call"][..]),
            (Some("prompts"), &["prompts/list", "prompts/get"]),
            (
                Some("resources"),
                &[
                    "resources/list",
                    "resources/templates/list",
                    "resources/read",
                    "resources/subscribe",
                    "resources/unsubscribe",
                ],
            ),
            (Some("logging"), &["logging/setLevel"]),
            (Some("completions"), &["completion/complete"]),
            (None, &["ping", "initialize", "tasks/get"]),
        ] {
            for method in methods {
                assert_eq!(
                    Method::parse(method.as_bytes()).server_capability(),
                    capability,
                    "{method}"
                );
            }
        }
    }
}
