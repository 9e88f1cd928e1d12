//! Who may come in, on the real binary: hosts and origins, tokens, an issuer of tokens, a proxy in front, and that nothing of
//! one caller ever reaches another. The issuer is the testkit's; a real provider is in `interop_oauth`.

mod guard {
    pub(crate) mod changes;
    pub(crate) mod fixture;
    pub(crate) mod issuer;
    pub(crate) mod origins;
    pub(crate) mod principals;
    pub(crate) mod states;
    pub(crate) mod tokens;
}
