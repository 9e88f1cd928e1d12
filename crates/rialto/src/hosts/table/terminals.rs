//! Hosts that are started in a terminal.

use super::{
    CommandShape, Fixed, Format, Host, LOCAL_REMOTE, LOCAL_STDIO, Listing, OwnCommand, References,
    RemoteShape, StdioShape, TYPED_REMOTE, TYPED_STDIO, USUAL, USUAL_REMOTE, USUAL_STDIO, UserFiles,
};

pub(super) const CLAUDE_CODE: Host = Host {
    id: "claude-code",
    title: "Claude Code",
    aliases: &["claude"],
    user: UserFiles::everywhere(&["${CLAUDE_CONFIG_DIR:-~}/.claude.json"]),
    project: &[".mcp.json"],
    stdio: TYPED_STDIO,
    remote: Some(TYPED_REMOTE),
    own: Some(OwnCommand {
        program: "claude",
        add: &["mcp", "add", "--scope", "user", "{name}", "--", "{command}"],
        add_remote: &[
            "mcp",
            "add",
            "--scope",
            "user",
            "--transport",
            "{transport}",
            "{name}",
            "{url}",
            "{headers}",
        ],
        remove: &["mcp", "remove", "--scope", "user", "{name}"],
    }),
    ..USUAL
};

pub(super) const COPILOT: Host = Host {
    id: "copilot-cli",
    title: "Copilot CLI",
    aliases: &["copilot", "github-copilot-cli"],
    user: UserFiles::everywhere(&["${COPILOT_HOME:-~/.copilot}/mcp-config.json"]),
    project: &[".mcp.json", ".github/mcp.json"],
    stdio: StdioShape {
        kind: Some(("type", "local")),
        more: &[("tools", Fixed::One("*"))],
        ..USUAL_STDIO
    },
    remote: Some(RemoteShape {
        more: &[("tools", Fixed::One("*"))],
        ..TYPED_REMOTE
    }),
    ..USUAL
};

pub(super) const CODEX: Host = Host {
    id: "codex",
    title: "Codex",
    aliases: &["codex-cli"],
    user: UserFiles::everywhere(&["${CODEX_HOME:-~/.codex}/config.toml"]),
    project: &[".codex/config.toml"],
    format: Format::Toml,
    keys: &[&["mcp_servers"]],
    remote: Some(RemoteShape {
        headers: &["http_headers"],
        ..USUAL_REMOTE
    }),
    references: References::None,
    own: Some(OwnCommand {
        program: "codex",
        add: &["mcp", "add", "{name}", "--", "{command}"],
        add_remote: &["mcp", "add", "{name}", "--url", "{url}"],
        remove: &["mcp", "remove", "{name}"],
    }),
    ..USUAL
};

pub(super) const GEMINI: Host = Host {
    id: "gemini-cli",
    title: "Gemini CLI",
    aliases: &["gemini"],
    user: UserFiles::everywhere(&["~/.gemini/settings.json"]),
    project: &[".gemini/settings.json"],
    remote: Some(RemoteShape {
        url: "httpUrl",
        ..USUAL_REMOTE
    }),
    references: References::BareDollar,
    own: Some(OwnCommand {
        program: "gemini",
        add: &["mcp", "add", "--scope", "user", "{name}", "{command}"],
        add_remote: &[
            "mcp",
            "add",
            "--scope",
            "user",
            "--transport",
            "{transport}",
            "{name}",
            "{url}",
            "{headers}",
        ],
        remove: &["mcp", "remove", "--scope", "user", "{name}"],
    }),
    ..USUAL
};

pub(super) const OPENCODE: Host = Host {
    id: "opencode",
    title: "OpenCode",
    user: UserFiles {
        linux: &[
            "${XDG_CONFIG_HOME:-~/.config}/opencode/opencode.jsonc",
            "${XDG_CONFIG_HOME:-~/.config}/opencode/opencode.json",
        ],
        macos: &[
            "${XDG_CONFIG_HOME:-~/.config}/opencode/opencode.jsonc",
            "${XDG_CONFIG_HOME:-~/.config}/opencode/opencode.json",
        ],
        windows: &[
            "~/.config/opencode/opencode.jsonc",
            "~/.config/opencode/opencode.json",
        ],
    },
    project: &["opencode.jsonc", "opencode.json"],
    keys: &[&["mcp", "servers"], &["mcp"]],
    stdio: LOCAL_STDIO,
    remote: Some(LOCAL_REMOTE),
    references: References::Braces,
    ..USUAL
};

pub(super) const KILO: Host = Host {
    id: "kilo",
    title: "Kilo",
    aliases: &["kilo-code"],
    user: UserFiles::everywhere(&["~/.config/kilo/kilo.jsonc", "~/.config/kilo/kilo.json"]),
    project: &[".kilo/kilo.jsonc", ".kilo/kilo.json", "kilo.jsonc", "kilo.json"],
    keys: &[&["mcp"]],
    ..OPENCODE
};

const GOOSE_MORE: &[(&str, Fixed)] = &[
    ("name", Fixed::Name),
    ("enabled", Fixed::Bool(true)),
    ("timeout", Fixed::Number("300")),
];

pub(super) const GOOSE: Host = Host {
    id: "goose",
    title: "Goose",
    user: UserFiles {
        linux: &["${XDG_CONFIG_HOME:-~/.config}/goose/config.yaml"],
        macos: &["~/.config/goose/config.yaml"],
        windows: &["${APPDATA:-~/AppData/Roaming}/Block/goose/config/config.yaml"],
    },
    project: &[".goose/config.yaml"],
    format: Format::Yaml,
    keys: &[&["extensions"]],
    stdio: StdioShape {
        kind: Some(("type", "stdio")),
        command: CommandShape::Program("cmd"),
        env: "envs",
        more: GOOSE_MORE,
    },
    remote: Some(RemoteShape {
        kind: Some(("type", "streamable_http", "sse")),
        url: "uri",
        sse_url: "uri",
        more: GOOSE_MORE,
        ..USUAL_REMOTE
    }),
    references: References::None,
    ..USUAL
};

pub(super) const CLINE_CLI: Host = Host {
    id: "cline-cli",
    title: "Cline CLI",
    user: UserFiles::everywhere(&["${CLINE_DIR:-~/.cline}/data/settings/cline_mcp_settings.json"]),
    is_gui: false,
    ..super::editors::CLINE
};

pub(super) const KIMI: Host = Host {
    id: "kimi",
    title: "Kimi",
    aliases: &["kimi-code", "kimi-cli"],
    user: UserFiles::everywhere(&["${KIMI_CODE_HOME:-~/.kimi-code}/mcp.json", "~/.kimi/mcp.json"]),
    project: &[".kimi-code/mcp.json"],
    remote: Some(RemoteShape {
        kind: Some(("transport", "http", "sse")),
        ..USUAL_REMOTE
    }),
    references: References::None,
    ..USUAL
};

pub(super) const GROK: Host = Host {
    id: "grok",
    title: "Grok",
    aliases: &["grok-build"],
    user: UserFiles::everywhere(&["${GROK_HOME:-~/.grok}/config.toml"]),
    project: &[".grok/config.toml"],
    format: Format::Toml,
    keys: &[&["mcp_servers"]],
    own: Some(OwnCommand {
        program: "grok",
        add: &["mcp", "add", "{name}", "--", "{command}"],
        add_remote: &[
            "mcp",
            "add",
            "--transport",
            "{transport}",
            "{name}",
            "{url}",
            "{headers}",
        ],
        remove: &["mcp", "remove", "{name}"],
    }),
    ..USUAL
};

pub(super) const MASTRA: Host = Host {
    id: "mastra",
    title: "Mastra Code",
    aliases: &["mastracode"],
    user: UserFiles::everywhere(&["~/.mastracode/mcp.json"]),
    project: &[".mastracode/mcp.json"],
    references: References::None,
    ..USUAL
};

pub(super) const PI: Host = Host {
    id: "pi",
    title: "Pi",
    user: UserFiles::everywhere(&["${PI_CODING_AGENT_DIR:-~/.pi/agent}/mcp.json"]),
    project: &[".pi/mcp.json"],
    references: References::BareDollar,
    ..USUAL
};

pub(super) const FX: Host = Host {
    id: "fx",
    title: "fx",
    user: UserFiles::everywhere(&["${FX_HOME:-~/.fx}/mcp.json"]),
    project: &[],
    keys: &[&["mcpServers"], &["mcp"]],
    remote: Some(RemoteShape {
        kind: Some(("type", "http", "sse")),
        ..LOCAL_REMOTE
    }),
    references: References::Dollar,
    own: Some(OwnCommand {
        program: "fx",
        add: &["mcp", "add", "{name}", "{command}"],
        add_remote: &["mcp", "add", "--transport", "{transport}", "{name}", "{url}"],
        remove: &["mcp", "remove", "{name}"],
    }),
    ..OPENCODE
};

pub(super) const MCPORTER: Host = Host {
    id: "mcporter",
    title: "mcporter",
    user: UserFiles::everywhere(&["~/.mcporter/mcporter.json", "~/.mcporter/mcporter.jsonc"]),
    project: &["config/mcporter.json"],
    ..USUAL
};

pub(super) const AMP: Host = Host {
    id: "amp",
    title: "Amp",
    user: UserFiles::everywhere(&["~/.config/amp/settings.json"]),
    project: &[".amp/settings.json"],
    keys: &[&["amp.mcpServers"]],
    ..USUAL
};

pub(super) const FACTORY: Host = Host {
    id: "factory",
    title: "Factory Droid",
    aliases: &["droid"],
    user: UserFiles::everywhere(&["~/.factory/mcp.json"]),
    project: &[".factory/mcp.json"],
    stdio: StdioShape {
        more: &[("disabled", Fixed::Bool(false))],
        ..TYPED_STDIO
    },
    remote: Some(RemoteShape {
        more: &[("disabled", Fixed::Bool(false))],
        ..TYPED_REMOTE
    }),
    ..USUAL
};

pub(super) const VIBE: Host = Host {
    id: "vibe",
    title: "Mistral Vibe",
    aliases: &["mistral-vibe"],
    user: UserFiles::everywhere(&["${VIBE_HOME:-~/.vibe}/config.toml"]),
    project: &[".vibe/config.toml"],
    format: Format::Toml,
    keys: &[&["mcp_servers"]],
    listing: Listing::Named,
    stdio: StdioShape {
        kind: Some(("transport", "stdio")),
        ..USUAL_STDIO
    },
    remote: Some(RemoteShape {
        kind: Some(("transport", "streamable-http", "http")),
        ..USUAL_REMOTE
    }),
    references: References::None,
    ..USUAL
};
