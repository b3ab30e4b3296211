//! Rules for memory: requests, limits and guest memory.

use super::{Cause, CauseKind, Path};
use crate::names::USERFAULTFD_RESOURCE;
use crate::quantity::{self, QuantityError};
use crate::syntax::quoted;
use crate::v1::VirtualMachineInstanceSpec;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The smallest memory request: KubeVirt's rule.
const LEAST_BYTES: u64 = 1_000_000;

/// Requires that an instance has memory.
pub(super) fn given(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let resources = spec.domain.resources.as_ref();
    let memory = spec.domain.memory.as_ref();
    // A quantity that cannot be read is a cause already and counts as given.
    let missing =
        |quantity: Option<&Quantity>| quantity.is_none_or(|quantity| quantity::bytes(quantity) == Ok(0));
    if missing(resources.and_then(|resources| resources.request("memory")))
        && missing(resources.and_then(|resources| resources.limit("memory")))
        && memory.is_none_or(|memory| memory.guest.is_none() && memory.hugepages.is_none())
    {
        let guest = path.child("domain.memory.guest");
        causes.push(Cause::required(
            &guest,
            format!(
                "no memory requested, at least one of '{guest}', '{}' or '{}' must be set",
                path.child("domain.memory.hugepages.pageSize"),
                path.child("domain.resources.requests.memory"),
            ),
        ));
    }
}

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let resources = spec.domain.resources.as_ref();
    let requests = path.child("domain.resources.requests");
    let limits = path.child("domain.resources.limits");
    let request_field = requests.child("memory");
    let limit_field = limits.child("memory");
    let guest_field = path.child("domain.memory.guest");

    let request = resources.and_then(|resources| resources.request("memory"));
    let limit = resources.and_then(|resources| resources.limit("memory"));
    let guest = spec.domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    let request_bytes = not_negative(&request_field, request, causes);
    let limit_bytes = not_negative(&limit_field, limit, causes);
    let guest_bytes = not_negative(&guest_field, guest, causes);

    for (field, quantity, bytes) in
        [(&request_field, request, request_bytes), (&guest_field, guest, guest_bytes)]
    {
        if let (Some(quantity), Some(1..LEAST_BYTES)) = (quantity, bytes) {
            causes.push(Cause::invalid(
                field,
                format!("{field} '{}': must be greater than or equal to 1M.", quantity.0),
            ));
        }
    }
    if let (Some(limit), Some(request), Some(limit_bytes @ 1..), Some(request_bytes)) =
        (limit, request, limit_bytes, request_bytes)
        && request_bytes > limit_bytes
    {
        causes.push(Cause::invalid(
            &request_field,
            format!("{request_field} '{}' is greater than {limit_field} '{}'", request.0, limit.0),
        ));
    }
    if let (Some(guest), Some(limit), Some(guest_bytes), Some(limit_bytes @ 1..)) =
        (guest, limit, guest_bytes, limit_bytes)
        && guest_bytes > limit_bytes
    {
        causes.push(Cause::invalid(
            &guest_field,
            format!(
                "{guest_field} '{}' must be equal to or less than the memory limit {limit_field} '{}'",
                guest.0, limit.0
            ),
        ));
    }
    if guest.is_some_and(|guest| quantity::bytes(guest) == Ok(0)) {
        causes.push(Cause::invalid(
            &guest_field,
            format!("{guest_field} '0': must be greater than or equal to 1M."),
        ));
    }
    if let Some(hugepages) = spec.domain.memory.as_ref().and_then(|memory| memory.hugepages.as_ref()) {
        let memory = [request_bytes, guest_bytes, limit_bytes].into_iter().flatten().find(|bytes| *bytes > 0);
        let page = hugepages.page_size.as_deref().unwrap_or_default();
        let request = request.or(guest).or(limit).map_or("0", |quantity| quantity.0.as_str());
        pages(path, page, memory, request, causes);
    }
    for (field, list) in [
        (&requests, resources.and_then(|resources| resources.requests.as_ref())),
        (&limits, resources.and_then(|resources| resources.limits.as_ref())),
    ] {
        for (name, quantity) in list.into_iter().flatten() {
            if name.starts_with("hugepages-") {
                causes.push(Cause::not_supported_yet(&field.child(&quoted(name)), ""));
            } else if name == USERFAULTFD_RESOURCE {
                // Users may not make pods that ask for it: neither may virt-controller for them.
                let field = field.child(name);
                let message =
                    format!("{field} is only for targets of migrations, which ask for it themselves");
                causes.push(Cause::not_supported(&field, message));
            } else if name != "cpu" && name != "memory" {
                not_negative(&field.child(&quoted(name)), Some(quantity), causes);
            }
        }
    }
}

/// Guest memory consists of whole pages. `memory` and `request` are the same amount, in bytes and as written.
fn pages(path: &Path, page: &str, memory: Option<u64>, request: &str, causes: &mut Vec<Cause>) {
    let field = path.child("domain.memory.hugepages.pageSize");
    let field_request = path.child("domain.resources.requests.memory");
    let (page, request) = (quoted(page), quoted(request));
    let size = match quantity::bytes(&Quantity(page.clone())) {
        Ok(size @ 1..) => size,
        Ok(0) | Err(QuantityError::Negative(_) | QuantityError::Range(_)) => {
            causes.push(Cause::invalid(&field, format!("{field} '{page}': must be greater than 0.")));
            return;
        }
        Err(QuantityError::Syntax(_)) => {
            causes.push(Cause::invalid(
                &field,
                format!(
                    "{field} '{page}': quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                ),
            ));
            return;
        }
    };
    let Some(memory) = memory else { return };
    if memory < size {
        causes.push(Cause::invalid(
            &field_request,
            format!("{field_request} '{request}' must be equal to or larger than page size {field} '{page}'"),
        ));
    } else if !memory.is_multiple_of(size) {
        causes.push(Cause::invalid(
            &field_request,
            format!("{field_request} '{request}' is not a multiple of the page size {field} '{page}'"),
        ));
    }
}

/// A given and valid quantity in bytes; adds a cause if it is invalid.
pub(super) fn not_negative(
    field: &Path,
    quantity: Option<&Quantity>,
    causes: &mut Vec<Cause>,
) -> Option<u64> {
    let quantity = quantity?;
    match quantity::bytes(quantity) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            causes.push(refused(field, quantity, &error));
            None
        }
    }
}

/// The cause for a quantity that cannot be used.
pub(super) fn refused(field: &Path, quantity: &Quantity, error: &QuantityError) -> Cause {
    let text = quoted(&quantity.0);
    let message = match error {
        QuantityError::Negative(_) => format!("{field} '{text}': must be greater than or equal to 0."),
        QuantityError::Range(_) => format!("{field} '{text}' is out of range"),
        QuantityError::Syntax(_) => {
            format!("{field} '{text}' is not a number with an optional suffix such as Mi or Gi")
        }
    };
    Cause::new(CauseKind::Invalid, field, message)
}
