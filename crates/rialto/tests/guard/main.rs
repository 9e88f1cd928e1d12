//! Authentication and authorisation of the real binary: hosts and origins, tokens, an issuer of
//! tokens, a proxy in front, and that nothing of one caller ever reaches another. The issuer is the
//! testkit's; a real provider is in `interop_oauth`.

mod changes;
mod fixture;
mod issuer;
mod origins;
mod principals;
mod states;
mod tokens;
