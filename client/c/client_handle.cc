// Checks that a call on an eplb_client is allowed now.
#include "client/c/client_handle.h"

namespace eplb::c {

absl::Status CheckState(const eplb_client* handle, const char* name, Needs needs) {
  if (handle == nullptr) return InvalidInput(name, ": client is NULL");
  if (needs == Needs::kNothing) return absl::OkStatus();
  if (handle->client == nullptr) {
    return FailedPrecondition(
        name, handle->closed ? " was called after close" : " was called before connect");
  }
  if (needs == Needs::kOpen && handle->closed) {
    return FailedPrecondition(name, " was called after close");
  }
  return absl::OkStatus();
}

Turn::Turn(eplb_client& handle, const char* name) : handle_(handle) {
  const char* other = nullptr;
  if (handle.under_way.compare_exchange_strong(other, name)) return;
  status_ =
      FailedPrecondition(name, " was called while ", other,
                         " is under way, in another thread or in the one whose callback this is");
}

Turn::~Turn() {
  if (status_.ok()) handle_.under_way = nullptr;
}

}  // namespace eplb::c
