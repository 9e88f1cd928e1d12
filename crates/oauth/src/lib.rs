//! Signing in at remote MCP servers: discovery, PKCE, tokens, and where they are kept.
