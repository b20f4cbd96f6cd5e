// Errors whose message is made of parts, joined as absl::StrCat joins them.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eplb {

// The error of a file, flag or argument that cannot be used.
// Parts are passed by value so that literals of different lengths share one instantiation.
template <class... Parts>
absl::Status InvalidInput(Parts... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

template <class... Parts>
absl::Status Aborted(Parts... parts) {
  return absl::AbortedError(absl::StrCat(parts...));
}
template <class... Parts>
absl::Status DataLoss(Parts... parts) {
  return absl::DataLossError(absl::StrCat(parts...));
}
template <class... Parts>
absl::Status DeadlineExceeded(Parts... parts) {
  return absl::DeadlineExceededError(absl::StrCat(parts...));
}
template <class... Parts>
absl::Status FailedPrecondition(Parts... parts) {
  return absl::FailedPreconditionError(absl::StrCat(parts...));
}
template <class... Parts>
absl::Status Internal(Parts... parts) {
  return absl::InternalError(absl::StrCat(parts...));
}
template <class... Parts>
absl::Status NotFound(Parts... parts) {
  return absl::NotFoundError(absl::StrCat(parts...));
}
template <class... Parts>
absl::Status PermissionDenied(Parts... parts) {
  return absl::PermissionDeniedError(absl::StrCat(parts...));
}
template <class... Parts>
absl::Status ResourceExhausted(Parts... parts) {
  return absl::ResourceExhaustedError(absl::StrCat(parts...));
}
template <class... Parts>
absl::Status Unavailable(Parts... parts) {
  return absl::UnavailableError(absl::StrCat(parts...));
}

}  // namespace eplb
