// Registered tensors must not share memory: a row that is moved twice, or moved with another
// expert's bytes in it, corrupts an expert that stayed.
#ifndef EPLB_CLIENT_MIGRATION_EXPERT_TENSORS_H_
#define EPLB_CLIENT_MIGRATION_EXPERT_TENSORS_H_

#include <span>

#include "absl/status/status.h"

#include "client/migration/executor.h"

namespace eplb {

// Rows of several tensors may lie between each other, as those of a fused buffer do; no byte may be
// in two of them.
// errors: InvalidArgument naming both tensors and local slots, for the lowest shared byte.
// REQUIRES: each tensor for itself is right. cost: O(n log n) for n rows.
absl::Status CheckRowsApart(std::span<const ExpertTensor> tensors);

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_EXPERT_TENSORS_H_
