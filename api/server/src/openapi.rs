//! The OpenAPI documents of `subresources.kubevirt.io`, versions 2 and 3, made from [`crate::endpoints`].
//!
//! The aggregator merges them into the cluster's own documents, which `kubectl` and client generators read.
//! Both versions describe the same calls; they differ in the places of bodies, types and schemas.
//!
//! Schemas are those of the API's types. A VirtualMachine is only named, because the custom resource
//! publishes its definition, and a document may not have it twice.

use barevirt_api::backup::{BackupCheckpoint, BackupOptions};
use barevirt_api::v1::{
    AddVolumeOptions, EvacuateCancelOptions, FreezeUnfreezeTimeout, MigrateOptions, ObjectGraphNode,
    ObjectGraphOptions, PauseOptions, RemoveVolumeOptions, RestartOptions, SevMeasurementInfo,
    SevPlatformInfo, SevSecretOptions, SevSessionOptions, StartOptions, StopOptions, UnpauseOptions,
    VirtualMachineInstanceFileSystemList, VirtualMachineInstanceGuestAgentInfo,
    VirtualMachineInstanceGuestOsUserList, VirtualMachineMemoryDumpRequest,
};
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::endpoints::{Answer, Call, ENDPOINTS, Endpoint, Kind, On, Query};
use crate::route::{GROUP, VERSIONS};

const JSON: &str = "application/json";
/// Clients send bodies with all content types, or without one.
const ANY: &str = "*/*";

/// The version of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Document {
    V2,
    V3,
}

/// `/openapi/v2`: all versions.
pub fn v2() -> Value {
    let mut generator = generator(Document::V2);
    let mut paths = Map::new();
    for version in VERSIONS {
        paths.append(&mut describe_all(Document::V2, version, &mut generator));
    }
    json!({
        "swagger": "2.0",
        "info": info(),
        "paths": paths,
        "definitions": generator.take_definitions(true),
    })
}

/// `/openapi/v3`: the paths of the documents.
pub fn v3_index() -> Value {
    let paths = VERSIONS.map(|version| {
        let path = format!("apis/{GROUP}/{version}");
        (path.clone(), json!({ "serverRelativeURL": format!("/openapi/v3/{path}") }))
    });
    json!({ "paths": Map::from_iter(paths) })
}

/// `/openapi/v3/apis/subresources.kubevirt.io/VERSION`.
pub fn v3(version: &str) -> Value {
    let mut generator = generator(Document::V3);
    let paths = describe_all(Document::V3, version, &mut generator);
    json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": paths,
        "components": { "schemas": generator.take_definitions(true) },
    })
}

fn info() -> Value {
    json!({ "title": "Barevirt", "version": barevirt_api::release::tag() })
}

fn generator(document: Document) -> SchemaGenerator {
    let mut settings =
        SchemaSettings::openapi3().with_transform(schemars::transform::RecursiveTransform(tidy));
    if document == Document::V2 {
        settings.definitions_path = "/definitions".into();
    }
    settings.into_generator()
}

/// The API machinery only knows signed numbers, and nullable fields are optional fields.
fn tidy(schema: &mut Schema) {
    match schema.get("format").and_then(Value::as_str) {
        Some("uint8" | "uint16" | "uint32") => drop(schema.insert("format".into(), "int32".into())),
        Some("uint" | "uint64") => drop(schema.insert("format".into(), "int64".into())),
        _ => {}
    }
    schema.remove("nullable");
    if let Some(Value::Array(choices)) = schema.get_mut("anyOf") {
        choices.retain(|choice| choice["enum"] != json!([null]));
    }
    // A choice with one element. A plain reference cannot have the text beside it.
    if schema.get("anyOf").and_then(Value::as_array).is_some_and(|choices| choices.len() == 1)
        && let Some(choice) = schema.remove("anyOf")
    {
        schema.insert("allOf".into(), choice);
    }
}

/// All paths of a version.
fn describe_all(document: Document, version: &str, generator: &mut SchemaGenerator) -> Map<String, Value> {
    // The list of resources is a path like the others; discovery starts with it.
    let resources = Operation {
        id: format!("{version}getAPISubResources"),
        does: "The calls of this group.",
        parameters: Vec::new(),
        body: None,
        success: ("200", "OK", Some((JSON, None))),
        errors: Vec::new(),
    };
    let mut paths = Map::new();
    paths.insert(format!("/apis/{GROUP}/{version}/"), json!({ "get": operation(document, &resources) }));
    for endpoint in ENDPOINTS {
        let method = endpoint.verb.method().as_str().to_ascii_lowercase();
        let operation = operation(document, &describe(endpoint, version, generator));
        // One path may have two methods.
        let methods = paths.entry(path(endpoint, version)).or_insert_with(|| json!({}));
        methods[method] = operation;
    }
    paths
}

/// The whole path, with its parameters in braces.
fn path(endpoint: &Endpoint, version: &str) -> String {
    let base = format!("/apis/{GROUP}/{version}");
    let path = endpoint.path;
    match endpoint.on {
        On::Everyone | On::Cluster => format!("{base}/{path}"),
        On::Namespace => format!("{base}/namespaces/{{namespace}}/{path}"),
        On::Machine | On::Instance => {
            format!("{base}/namespaces/{{namespace}}/{}/{{name}}/{path}", endpoint.resource())
        }
    }
}

/// The content that both documents have about a call.
struct Operation {
    id: String,
    does: &'static str,
    parameters: Vec<Parameter>,
    body: Option<Body>,
    /// Status, text, and content type and schema of a body.
    success: (&'static str, &'static str, Option<(&'static str, Option<Value>)>),
    errors: Vec<(&'static str, &'static str)>,
}

struct Parameter {
    name: String,
    place: &'static str,
    kind: &'static str,
    required: bool,
    does: &'static str,
}

struct Body {
    schema: Value,
    required: bool,
}

fn describe(endpoint: &Endpoint, version: &str, generator: &mut SchemaGenerator) -> Operation {
    let body = endpoint.takes.map(|kind| {
        let schema = schema(kind, generator);
        let required = says_something(&schema, generator);
        Body { schema: schema.into(), required }
    });
    let success = match endpoint.answers {
        Answer::Accepted => ("202", "Accepted", None),
        Answer::Done => ("200", "OK", None),
        Answer::Json => ("200", "OK", Some((JSON, None))),
        Answer::Object(kind) => ("200", "OK", Some((JSON, Some(schema(kind, generator).into())))),
        Answer::Png => ("200", "OK", Some(("image/png", None))),
        Answer::Stream => ("101", "Switching Protocols", None),
    };
    let mut errors = Vec::new();
    if endpoint.on != On::Everyone {
        errors.extend([("401", "Unauthorized"), ("403", "Forbidden"), ("404", "Not Found")]);
    }
    if endpoint.call == Call::NotYet {
        errors.push(("501", "Not Implemented"));
    }
    Operation {
        id: format!("{version}{}", endpoint.operation),
        does: endpoint.does,
        parameters: parameters(endpoint, version),
        body,
        success,
        errors,
    }
}

fn parameters(endpoint: &Endpoint, version: &str) -> Vec<Parameter> {
    let in_path = |name: &str| Parameter {
        name: name.to_owned(),
        place: "path",
        kind: "string",
        required: true,
        does: match name {
            "namespace" => "Namespace of the object.",
            "name" => "Name of the object.",
            "port" => "Port in the guest.",
            "protocol" => "tcp or udp.",
            _ => "",
        },
    };
    let in_query = |query: &Query| Parameter {
        name: query.name.to_owned(),
        place: "query",
        kind: query.kind,
        required: query.required,
        does: query.does,
    };
    let path = path(endpoint, version);
    let words = path.split('/').filter_map(|word| word.strip_prefix('{')?.strip_suffix('}'));
    words.map(in_path).chain(endpoint.query.iter().map(in_query)).collect()
}

fn operation(document: Document, told: &Operation) -> Value {
    let mut parameters: Vec<Value> = told.parameters.iter().map(|told| parameter(document, told)).collect();
    let mut responses = Map::new();
    let (status, text, body) = &told.success;
    let mut success = json!({ "description": text });
    if let Some((media, schema)) = body {
        let schema = schema.clone().unwrap_or_else(|| match *media {
            JSON => json!({ "type": "object" }),
            _ => json!({ "type": "string", "format": "binary" }),
        });
        match document {
            Document::V2 => success["schema"] = schema,
            Document::V3 => success["content"] = json!({ *media: { "schema": schema } }),
        }
    }
    responses.insert((*status).to_owned(), success);
    for (status, text) in &told.errors {
        responses.insert((*status).to_owned(), json!({ "description": text }));
    }
    let mut operation = json!({ "operationId": told.id, "description": told.does });
    match (document, &told.body) {
        (Document::V2, Some(Body { schema, required })) => {
            parameters.push(json!({ "name": "body", "in": "body", "required": required, "schema": schema }));
        }
        (Document::V3, Some(Body { schema, required })) => {
            operation["requestBody"] =
                json!({ "required": required, "content": { ANY: { "schema": schema } } });
        }
        (_, None) => {}
    }
    if document == Document::V2 {
        operation["consumes"] = json!([ANY]);
        operation["produces"] = json!([body.as_ref().map_or(JSON, |(media, _)| *media)]);
    }
    operation["parameters"] = json!(parameters);
    operation["responses"] = Value::Object(responses);
    operation
}

fn parameter(document: Document, told: &Parameter) -> Value {
    let Parameter { name, place, kind, required, does } = told;
    let mut parameter = json!({ "name": name, "in": place, "required": required, "description": does });
    match document {
        Document::V2 => parameter["type"] = json!(kind),
        Document::V3 => parameter["schema"] = json!({ "type": kind }),
    }
    parameter
}

/// The schema of a kind: usually a reference, whose target the generator adds.
fn schema(kind: Kind, generator: &mut SchemaGenerator) -> Schema {
    match kind {
        Kind::AddVolumeOptions => generator.subschema_for::<AddVolumeOptions>(),
        Kind::BackupCheckpoint => generator.subschema_for::<BackupCheckpoint>(),
        Kind::BackupOptions => generator.subschema_for::<BackupOptions>(),
        Kind::EvacuateCancelOptions => generator.subschema_for::<EvacuateCancelOptions>(),
        Kind::FreezeUnfreezeTimeout => generator.subschema_for::<FreezeUnfreezeTimeout>(),
        Kind::MigrateOptions => generator.subschema_for::<MigrateOptions>(),
        Kind::ObjectGraphNode => generator.subschema_for::<ObjectGraphNode>(),
        Kind::ObjectGraphOptions => generator.subschema_for::<ObjectGraphOptions>(),
        Kind::PauseOptions => generator.subschema_for::<PauseOptions>(),
        Kind::QmpAnswer => json_schema!({ "type": "object", "description": "What QEMU answered." }),
        Kind::QmpCommand => json_schema!({
            "type": "object",
            "required": ["execute"],
            "properties": {
                "execute": { "type": "string", "description": "Name of the command." },
                "arguments": { "type": "object", "description": "Its arguments." },
            },
        }),
        Kind::RemoveVolumeOptions => generator.subschema_for::<RemoveVolumeOptions>(),
        Kind::RestartOptions => generator.subschema_for::<RestartOptions>(),
        Kind::SevMeasurementInfo => generator.subschema_for::<SevMeasurementInfo>(),
        Kind::SevPlatformInfo => generator.subschema_for::<SevPlatformInfo>(),
        Kind::SevSecretOptions => generator.subschema_for::<SevSecretOptions>(),
        Kind::SevSessionOptions => generator.subschema_for::<SevSessionOptions>(),
        Kind::StartOptions => generator.subschema_for::<StartOptions>(),
        Kind::StopOptions => generator.subschema_for::<StopOptions>(),
        Kind::UnpauseOptions => generator.subschema_for::<UnpauseOptions>(),
        Kind::Version => json_schema!({ "type": "object", "additionalProperties": { "type": "string" } }),
        Kind::VirtualMachine => json_schema!({
            "type": "object",
            "required": ["spec"],
            "description": "A VirtualMachine of kubevirt.io.",
        }),
        Kind::VirtualMachineInstanceFileSystemList => {
            generator.subschema_for::<VirtualMachineInstanceFileSystemList>()
        }
        Kind::VirtualMachineInstanceGuestAgentInfo => {
            generator.subschema_for::<VirtualMachineInstanceGuestAgentInfo>()
        }
        Kind::VirtualMachineInstanceGuestOsUserList => {
            generator.subschema_for::<VirtualMachineInstanceGuestOsUserList>()
        }
        Kind::VirtualMachineMemoryDumpRequest => generator.subschema_for::<VirtualMachineMemoryDumpRequest>(),
    }
}

/// Whether a body of this schema has required fields, so that the body itself is required.
fn says_something(schema: &Schema, generator: &SchemaGenerator) -> bool {
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
    let written = target.and_then(|name| generator.definitions().get(name));
    written.map_or_else(|| schema.get("required"), |written| written.get("required")).is_some()
}

#[cfg(test)]
mod tests;
