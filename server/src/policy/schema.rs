//! The schema of policies, and its types.

use cedar_policy::{EntityId, EntityTypeName, EntityUid, Schema};

/// The schema of policies, in Cedar's schema language.
pub(crate) const SCHEMA: &str = include_str!("telexec.cedarschema");

/// The types of the schema.
pub(super) struct Names {
    pub(super) role: EntityTypeName,
    pub(super) identity: EntityTypeName,
    pub(super) agent: EntityTypeName,
    pub(super) execution: EntityTypeName,
    pub(super) action: EntityTypeName,
}

/// An entity of this type.
pub(super) fn uid(kind: &EntityTypeName, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(kind.clone(), EntityId::new(id))
}

/// The schema and its types. It is compiled in, and a test shows that it is valid.
pub(super) fn schema() -> Result<(Schema, Names), String> {
    let (schema, _) = Schema::from_cedarschema_str(SCHEMA).map_err(|error| error.to_string())?;
    let name = |name: &str| name.parse().map_err(|error: cedar_policy::ParseErrors| error.to_string());
    let names = Names {
        role: name("Role")?,
        identity: name("Identity")?,
        agent: name("Agent")?,
        execution: name("Execution")?,
        action: name("Action")?,
    };
    Ok((schema, names))
}
