// @ts-check
// What the gateway sends, as types. docs/looking.md and docs/page.md describe the members.

/**
 * @typedef {object} Limit
 * @property {number | null} used
 * @property {number | null} most
 * @property {number} hits
 * @property {number | null} last_hit_ms
 */

/**
 * @typedef {object} Failure
 * @property {string} reason
 * @property {string} blame
 * @property {number} count
 * @property {number} recent
 */

/**
 * @typedef {object} Instance
 * @property {string} state
 * @property {string | null} error
 * @property {string | null} era
 * @property {string} serves
 * @property {string | null} caller
 * @property {string | null} directory
 * @property {number | null} pid
 * @property {number | null} processes
 * @property {number | null} memory_bytes
 * @property {number | null} age_ms
 * @property {number} restarts
 * @property {number | null} last_asked_ms
 * @property {number} users
 * @property {{ in_flight: number, waiting: number }} calls
 * @property {number} open_questions
 * @property {number} queued_bytes
 * @property {number} [stderr_lines]
 */

/**
 * @typedef {object} Session
 * @property {string} session
 * @property {{ name: string, version: string | null } | null} client
 * @property {string | null} version
 * @property {string} era
 * @property {string} caller
 * @property {boolean} implicit
 * @property {number} age_ms
 * @property {number | null} idle_ms
 * @property {number} calls
 * @property {number} streams
 * @property {number} queued_bytes
 * @property {number | null} server_pid
 */

/**
 * @typedef {object} Destination
 * @property {string} name
 * @property {boolean} configured
 * @property {string} transport
 * @property {string} process
 * @property {string | null} start
 * @property {string} state
 * @property {boolean} ready
 * @property {string | null} error
 * @property {string | null} resting
 * @property {string | null} era
 * @property {number | null} tools
 * @property {string} [tools_known]
 * @property {string[]} [withheld]
 * @property {{ allow: string[], deny: string[] } | null} [policy]
 * @property {{ method: string, age_ms: number, session: string | null }[]} [question_list]
 * @property {number} sessions
 * @property {number | null} sessions_restored
 * @property {number} parked
 * @property {number} listens
 * @property {Record<string, number>} streams
 * @property {{ in_flight: number, waiting: number, ended: number }} calls
 * @property {number} open_questions
 * @property {number} queued_bytes
 * @property {{ span_ms: number, calls: number, p50_ms: number | null, p99_ms: number | null }} recent
 * @property {Failure[]} failures
 * @property {Record<string, Limit>} limits
 * @property {Record<string, { state: string, since: number }> | null} members
 * @property {Instance[]} instances
 * @property {Session[]} session_list
 */

/**
 * @typedef {object} Snapshot
 * @property {number} snapshot
 * @property {string} rialto
 * @property {number} pid
 * @property {number | null} memory_bytes
 * @property {number} up_ms
 * @property {string} taken_at
 * @property {string | null} url
 * @property {string | null} config
 * @property {boolean} ready
 * @property {boolean} draining
 * @property {boolean} last_reload_failed
 * @property {Record<string, Limit>} limits
 * @property {{ open: number, dropped: number }} readers
 * @property {object | null} cluster
 * @property {Destination[]} destinations
 * @property {PageFacts} page only when it is fetched, never in the stream
 */

/**
 * @typedef {object} PageFacts
 * @property {string | null} signed_in
 * @property {boolean} setup
 * @property {boolean} audit_bodies
 * @property {number} calls_kept_bytes
 */

/**
 * An ended call: a line of the audit log, and its parts. `null` was not observed.
 * @typedef {object} Call
 * @property {string} ts when it ended
 * @property {number} at the same, in milliseconds
 * @property {string} destination
 * @property {string | null} session
 * @property {string} principal
 * @property {string} http_method
 * @property {string | null} mcp_method
 * @property {string | null} tool
 * @property {string} [member]
 * @property {string} [own_name]
 * @property {string | number | null} rpc_id
 * @property {number} status_code
 * @property {string} outcome
 * @property {string | null} reason
 * @property {number} latency_ms
 * @property {number} request_bytes
 * @property {number} response_bytes
 * @property {string | null} client
 * @property {number | null} waited_ms
 * @property {number | null} starting_ms
 * @property {number | null} server_ms
 * @property {number | null} streaming_ms
 * @property {string} [request_body]
 * @property {string} [response_body]
 */

/**
 * A tool as its server declares it. Nothing of it may be trusted.
 * @typedef {object} Tool
 * @property {string} name
 * @property {string} [title]
 * @property {string} [description]
 * @property {any} [inputSchema]
 * @property {any} [outputSchema]
 * @property {Record<string, unknown>} [annotations]
 */

/**
 * @typedef {object} Reading
 * @property {number} age_ms
 * @property {string | null} error
 * @property {string | null} era
 * @property {string | null} revision
 * @property {{ name?: string, title?: string | null, version?: string } | null} server
 * @property {string | null} instructions
 * @property {Record<string, unknown> | null} capabilities
 * @property {Tool[]} tools
 * @property {any[]} prompts
 * @property {any[]} resources
 * @property {any[]} resource_templates
 */

/**
 * @typedef {object} Why
 * @property {string} reason
 * @property {string} blame
 * @property {number} count
 * @property {number} recent
 * @property {{ status: string | null, message: string, text: string }[]} means
 */

/**
 * @typedef {object} Detail
 * @property {string} name
 * @property {string} taken_at
 * @property {Reading | null} read
 * @property {{ pid: number | null, running: boolean, lines: string[] }[]} stderr
 * @property {{ url: string | null, needs_token: boolean } | null} connect
 * @property {Why[]} why
 */

/**
 * @typedef {object} HostEntry
 * @property {string} name
 * @property {string} kind
 * @property {string | null} points_at
 * @property {string | null} project
 */

/** @typedef {{ subject: string, weight: string, what: string, why: string, cure: { kind: string, line: string, file?: string } }} Finding */

/**
 * @typedef {object} Setup
 * @property {boolean} available
 * @property {string} [why]
 * @property {{ host: string, title: string, path: string, servers: HostEntry[] }[]} [hosts] one for each file
 * @property {Finding[]} [findings] as `rialto doctor --json` has them
 * @property {{ host: string, title: string, file: string | null, text: string }[]} [snippets]
 */

export {};
