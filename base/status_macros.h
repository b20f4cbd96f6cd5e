// One propagation macro pair; same names and meaning as absl/status/status_macros.h (LTS
// 20260526+), which the pinned Abseil does not have yet. Delete this file when it does.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define EPLB_CONCAT_INNER(a, b) a##b
#define EPLB_CONCAT(a, b) EPLB_CONCAT_INNER(a, b)

#define EPLB_RETURN_IF_ERROR(expr)                              \
  do {                                                          \
    if (absl::Status eplb_status = (expr); !eplb_status.ok()) { \
      return eplb_status;                                       \
    }                                                           \
  } while (false)

#define EPLB_ASSIGN_OR_RETURN(lhs, expr) \
  EPLB_ASSIGN_OR_RETURN_IMPL(EPLB_CONCAT(eplb_or_, __LINE__), lhs, expr)
#define EPLB_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                               \
  if (!tmp.ok()) return std::move(tmp).status();   \
  lhs = *std::move(tmp)
