//! Many servers behind one endpoint: names, lists, and the way of each message to its member.
//!
//! Everything that a client sees is a pure function of the configuration ([`Plan`]) and of what
//! each member offers ([`Offer`]). Nothing changes because another member joined, is down, or
//! answered first: rules of hosts, prompts and caches depend on names.
//!
//! | Value | What it is |
//! |---|---|
//! | [`Plan`] | the aggregate as configured: members, prefixes, rules, limits |
//! | [`Offer`] | what one member offered last; it can be stored |
//! | [`View`] | what clients see: exact tables of names, merged lists, one declaration |
//!
//! | Machine | What it does |
//! |---|---|
//! | [`OfferReader`] | reads what one member offers, and again when that changes |
//! | [`Catalogue`] | makes views of what members offer and how they are |
//! | [`Conversation`] | routes between one client and the members |
//!
//! Messages are rewritten by splicing at known places alone (`rewriting`). Text and structured
//! content stay bytes.

mod catalogue;
mod conversation;
mod names;
mod offer;
mod places;
mod plan;
mod reader;
mod rewriting;
mod rules;
mod search;
mod uris;
mod view;

pub use catalogue::{Catalogue, CatalogueOutput};
pub use conversation::{Conversation, ConversationOutput, CursorSeal, NoCursors, Routed, tool_within};
pub use offer::{ListKind, Offer, OfferedList};
pub use plan::{
    AggregateLimits, Annotations, Member, MemberName, MemberSpec, Plan, PlanError, PlanSpec, ToolRules,
    ToolsMode, WhenDown,
};
pub use reader::{OfferReader, ReadFailure, ReaderOutput};
pub use search::RESERVED_NAMES as SEARCH_TOOLS;
pub use view::{MemberState, View, Withheld};
