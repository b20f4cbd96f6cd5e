// The error of a file, flag or argument that cannot be used.
#ifndef EPLB_BASE_INVALID_INPUT_H_
#define EPLB_BASE_INVALID_INPUT_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eplb {

// Returns an InvalidArgument error whose message is `parts`, joined as absl::StrCat joins them.
// Parts are passed by value so that literals of different lengths share one instantiation.
template <class... Parts>
absl::Status InvalidInput(Parts... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

}  // namespace eplb

#endif  // EPLB_BASE_INVALID_INPUT_H_
