//! Everything of Rialto that touches the world: the doors clients come in by, the children and remote
//! servers behind, and the tasks between them. Protocol decisions are not made here.
pub mod backend_face;
pub mod settings;
