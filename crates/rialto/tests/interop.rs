//! Official SDK clients against real servers, with the real binary in between.
//!
//! Each test is one cell of (client and era, scenario): it starts `rialto serve` in front of
//! `@modelcontextprotocol/server-everything` or of the demo server, lets the client script of
//! `tests/interop` play the scenario, judges what the client saw, ends Rialto and looks for
//! processes left behind. The packages come from `cargo xtask setup`; without them a test fails
//! with that reason. The column of rmcp is in `crates/interop-rmcp`.

use serde_json::Value;
use testkit::interop::sdk::{Era, Sdk, player};

fn client(sdk: Sdk, era: Era) -> impl FnOnce(&str, &str) -> Result<Value, String> {
    player("client", sdk, era)
}

testkit::interop_column!(
    typescript_1_client_in_the_legacy_era,
    client(Sdk::TypeScript1, Era::Legacy)
);
testkit::interop_column!(
    typescript_2_client_in_the_legacy_era,
    client(Sdk::TypeScript2, Era::Legacy)
);
testkit::interop_column!(
    python_1_client_in_the_legacy_era,
    client(Sdk::Python1, Era::Legacy)
);
testkit::interop_column!(
    python_2_client_in_the_legacy_era,
    client(Sdk::Python2, Era::Legacy)
);

testkit::interop_old_column!(
    typescript_1_client_of_the_old_transport,
    client(Sdk::TypeScript1, Era::OldTransport)
);
testkit::interop_old_column!(
    python_1_client_of_the_old_transport,
    client(Sdk::Python1, Era::OldTransport)
);

// rmcp has no way to name the event to go on after, so this scenario is in no column.
testkit::interop_cells! { client(Sdk::TypeScript1, Era::Legacy);
    typescript_1_client_that_never_sends_delete_finds_room: reconnects behind demo_with_ten_sessions;
    typescript_1_client_that_never_sends_delete_finds_a_process: reconnects behind demo_per_session;
    typescript_1_client_resumes_from_a_token_in_a_new_connection: resume_with_token behind everything;
    typescript_1_client_gets_progress_from_a_server_started_by_npx: progress behind everything_by_npx;
}
testkit::interop_cells! { client(Sdk::TypeScript2, Era::Legacy);
    typescript_2_client_that_never_sends_delete_finds_room: reconnects behind demo_with_ten_sessions;
    typescript_2_client_that_never_sends_delete_finds_a_process: reconnects behind demo_per_session;
    typescript_2_client_resumes_from_a_token_in_a_new_connection: resume_with_token behind everything;
}
testkit::interop_cells! { client(Sdk::Python1, Era::Legacy);
    python_1_client_resumes_from_a_token_in_a_new_connection: resume_with_token behind everything;
    python_1_client_gets_progress_from_a_server_started_by_npx: progress behind everything_by_npx;
}
testkit::interop_cells! { client(Sdk::Python2, Era::Legacy);
    python_2_client_resumes_from_a_token_in_a_new_connection: resume_with_token behind everything;
}

// What these clients do by default, or when they detect the era: the server only knows the legacy
// era, but Rialto shows it in both, so that is what they find. The crossing of the eras is in
// `eras`.
testkit::interop_cells! { client(Sdk::TypeScript2, Era::Auto);
    typescript_2_client_that_looks_for_the_modern_era_finds_it: discover behind everything;
    typescript_2_client_that_looks_for_the_modern_era_calls: call behind everything;
}
testkit::interop_cells! { client(Sdk::TypeScript2, Era::Modern);
    typescript_2_client_that_wants_only_the_modern_era_finds_it: discover behind everything;
    typescript_2_client_that_wants_only_the_modern_era_calls: call behind everything;
}
testkit::interop_cells! { client(Sdk::Python2, Era::Auto);
    python_2_client_that_looks_for_the_modern_era_finds_it: discover behind everything;
    python_2_client_that_looks_for_the_modern_era_calls: call behind everything;
}
