//! Files that derive from declarations in the code.

mod configuration;
