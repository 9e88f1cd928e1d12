//! Hosts with a window: desktop programs, editors, and what runs inside of editors.

use super::{
    Fixed, Format, Host, Listing, OwnCommand, References, RemoteShape, SERVER_URL, StdioShape, TYPED_REMOTE,
    TYPED_STDIO, USUAL, USUAL_REMOTE, USUAL_STDIO, UserFiles,
};

/// What hosts with a window have in common.
const WINDOW: Host = Host {
    is_gui: true,
    ..USUAL
};

pub(super) const CLAUDE_DESKTOP: Host = Host {
    id: "claude-desktop",
    title: "Claude Desktop",
    user: UserFiles {
        linux: &["${XDG_CONFIG_HOME:-~/.config}/Claude/claude_desktop_config.json"],
        macos: &["~/Library/Application Support/Claude/claude_desktop_config.json"],
        windows: &["${APPDATA:-~/AppData/Roaming}/Claude/claude_desktop_config.json"],
    },
    remote: None,
    references: References::None,
    ..WINDOW
};

pub(super) const CURSOR: Host = Host {
    id: "cursor",
    title: "Cursor",
    user: UserFiles::everywhere(&["~/.cursor/mcp.json"]),
    project: &[".cursor/mcp.json"],
    ..WINDOW
};

pub(super) const VSCODE: Host = Host {
    id: "vscode",
    title: "VS Code",
    aliases: &["vs-code", "code"],
    user: UserFiles {
        linux: &["${XDG_CONFIG_HOME:-~/.config}/Code/User/mcp.json"],
        macos: &["~/Library/Application Support/Code/User/mcp.json"],
        windows: &["${APPDATA:-~/AppData/Roaming}/Code/User/mcp.json"],
    },
    project: &[".vscode/mcp.json"],
    keys: &[&["servers"]],
    stdio: TYPED_STDIO,
    remote: Some(TYPED_REMOTE),
    own: Some(OwnCommand {
        program: "code",
        add: &["--add-mcp", "{json}"],
        add_remote: &["--add-mcp", "{json}"],
        remove: &[],
    }),
    ..WINDOW
};

pub(super) const VSCODE_INSIDERS: Host = Host {
    id: "vscode-insiders",
    title: "VS Code Insiders",
    aliases: &["code-insiders"],
    user: UserFiles {
        linux: &["${XDG_CONFIG_HOME:-~/.config}/Code - Insiders/User/mcp.json"],
        macos: &["~/Library/Application Support/Code - Insiders/User/mcp.json"],
        windows: &["${APPDATA:-~/AppData/Roaming}/Code - Insiders/User/mcp.json"],
    },
    // The file of a project is that of VS Code.
    project: &[],
    own: Some(OwnCommand {
        program: "code-insiders",
        add: &["--add-mcp", "{json}"],
        add_remote: &["--add-mcp", "{json}"],
        remove: &[],
    }),
    ..VSCODE
};

pub(super) const WINDSURF: Host = Host {
    id: "windsurf",
    title: "Windsurf",
    user: UserFiles::everywhere(&["~/.codeium/windsurf/mcp_config.json"]),
    remote: Some(SERVER_URL),
    ..WINDOW
};

pub(super) const ANTIGRAVITY: Host = Host {
    id: "antigravity",
    title: "Antigravity",
    user: UserFiles::everywhere(&[
        "~/.gemini/config/mcp_config.json",
        "~/.gemini/antigravity/mcp_config.json",
    ]),
    remote: Some(SERVER_URL),
    ..WINDOW
};

pub(super) const ZED: Host = Host {
    id: "zed",
    title: "Zed",
    user: UserFiles {
        linux: &["${XDG_CONFIG_HOME:-~/.config}/zed/settings.json"],
        macos: &["~/.config/zed/settings.json"],
        windows: &["${APPDATA:-~/AppData/Roaming}/Zed/settings.json"],
    },
    project: &[".zed/settings.json"],
    keys: &[&["context_servers"]],
    stdio: StdioShape {
        more: &[("source", Fixed::Text("custom"))],
        ..USUAL_STDIO
    },
    remote: Some(RemoteShape {
        more: &[("source", Fixed::Text("custom"))],
        ..TYPED_REMOTE
    }),
    references: References::None,
    ..WINDOW
};

pub(super) const CLINE: Host = Host {
    id: "cline",
    title: "Cline in VS Code",
    user: UserFiles {
        linux: &[
            "${XDG_CONFIG_HOME:-~/.config}/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        ],
        macos: &[
            "~/Library/Application Support/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        ],
        windows: &[
            "${APPDATA:-~/AppData/Roaming}/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        ],
    },
    stdio: StdioShape {
        more: &[("disabled", Fixed::Bool(false))],
        ..USUAL_STDIO
    },
    remote: Some(RemoteShape {
        kind: Some(("type", "streamableHttp", "sse")),
        more: &[("disabled", Fixed::Bool(false))],
        ..USUAL_REMOTE
    }),
    ..WINDOW
};

pub(super) const KIRO: Host = Host {
    id: "kiro",
    title: "Kiro",
    aliases: &["kiro-cli"],
    user: UserFiles::everywhere(&["~/.kiro/settings/mcp.json"]),
    project: &[".kiro/settings/mcp.json"],
    ..WINDOW
};

pub(super) const LM_STUDIO: Host = Host {
    id: "lm-studio",
    title: "LM Studio",
    aliases: &["lmstudio"],
    user: UserFiles::everywhere(&["~/.lmstudio/mcp.json"]),
    references: References::None,
    ..WINDOW
};

pub(super) const ROO: Host = Host {
    id: "roo",
    title: "Roo Code",
    aliases: &["roo-code"],
    user: UserFiles {
        linux: &[
            "${XDG_CONFIG_HOME:-~/.config}/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
        ],
        macos: &[
            "~/Library/Application Support/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
        ],
        windows: &[
            "${APPDATA:-~/AppData/Roaming}/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
        ],
    },
    project: &[".roo/mcp.json"],
    remote: Some(RemoteShape {
        kind: Some(("type", "streamable-http", "sse")),
        ..USUAL_REMOTE
    }),
    ..WINDOW
};

pub(super) const TRAE: Host = Host {
    id: "trae",
    title: "Trae",
    user: UserFiles {
        linux: &["${XDG_CONFIG_HOME:-~/.config}/Trae/User/mcp.json"],
        macos: &["~/Library/Application Support/Trae/User/mcp.json"],
        windows: &["${APPDATA:-~/AppData/Roaming}/Trae/User/mcp.json"],
    },
    project: &[".trae/mcp.json"],
    ..WINDOW
};

pub(super) const CONTINUE: Host = Host {
    id: "continue",
    title: "Continue",
    user: UserFiles::everywhere(&["~/.continue/config.yaml"]),
    format: Format::Yaml,
    listing: Listing::Named,
    remote: Some(RemoteShape {
        kind: Some(("type", "streamable-http", "sse")),
        headers: &["requestOptions", "headers"],
        ..USUAL_REMOTE
    }),
    ..WINDOW
};

pub(super) const QODER: Host = Host {
    id: "qoder",
    title: "Qoder",
    user: UserFiles {
        linux: &["~/.qoder/mcp.json"],
        macos: &["~/.qoder/mcp.json"],
        windows: &["${APPDATA:-~/AppData/Roaming}/Qoder/SharedClientCache/mcp.json"],
    },
    project: &[".qoder/mcp.json"],
    remote: Some(TYPED_REMOTE),
    ..WINDOW
};
