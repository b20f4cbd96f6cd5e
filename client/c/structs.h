// Structs that carry their size: a caller compiled against another version of eplb.h has a shorter
// or a longer one.
#ifndef EPLB_CLIENT_C_STRUCTS_H_
#define EPLB_CLIENT_C_STRUCTS_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "client/c/eplb.h"
#include "client/c/eplb_plan.h"
#include "placement/status_macros.h"

namespace eplb::c {

// The size that the struct had when it came into the ABI: no caller has a shorter one.
template <class Struct>
inline constexpr size_t kFirstSize = 0;
template <>
inline constexpr size_t kFirstSize<eplb_client_options> = 224;
template <>
inline constexpr size_t kFirstSize<eplb_tensor> = 72;
template <>
inline constexpr size_t kFirstSize<eplb_boundary> = 72;
template <>
inline constexpr size_t kFirstSize<eplb_placement> = 136;
template <>
inline constexpr size_t kFirstSize<eplb_device_tables> = 80;
template <>
inline constexpr size_t kFirstSize<eplb_stats> = 88;
template <>
inline constexpr size_t kFirstSize<eplb_replica_rows> = 56;
template <>
inline constexpr size_t kFirstSize<eplb_rebalance_options> = 40;
template <>
inline constexpr size_t kFirstSize<eplb_plan_options> = 88;
template <>
inline constexpr size_t kFirstSize<eplb_plan_sizes> = 24;

// No struct will ever be longer: a struct_size that was never set is found before its bytes are
// looked at.
inline constexpr size_t kMaxStructSize = 4096;

// errors: InvalidArgument, naming the argument, for a struct_size that no version of eplb.h has.
template <class Struct>
absl::Status CheckStructSize(const char* name, size_t struct_size) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  static_assert(kFirstSize<Struct> >= sizeof(size_t) && kFirstSize<Struct> <= sizeof(Struct));
  if (struct_size >= kFirstSize<Struct> && struct_size <= kMaxStructSize) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ".struct_size is ", struct_size,
                                                 ", expected sizeof, which is ", sizeof(Struct),
                                                 " in this library"));
}

// The caller's struct, with `defaults` for what it is too short for.
// errors: InvalidArgument, naming the argument: NULL, no right struct_size, or a field that this
// library does not know is not 0.
template <class Struct>
absl::StatusOr<Struct> ReadStruct(const char* name, const Struct* given, Struct defaults = {}) {
  if (given == nullptr) return absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
  EPLB_RETURN_IF_ERROR(CheckStructSize<Struct>(name, given->struct_size));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  const size_t size = given->struct_size;
  if (size > sizeof(Struct) &&
      std::any_of(bytes + sizeof(Struct), bytes + size, [](unsigned char b) { return b != 0; })) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " sets a field that this library, ", eplb_version(),
                     ", does not know: it is older than the eplb.h that the program is made with"));
  }
  std::memcpy(&defaults, given, std::min(size, sizeof(Struct)));
  return defaults;
}

// errors: InvalidArgument, naming the argument: NULL or no right struct_size.
template <class Struct>
absl::Status CheckFillable(const char* name, const Struct* result) {
  if (result == nullptr) return absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
  return CheckStructSize<Struct>(name, result->struct_size);
}

// Writes as much of `value` as the caller's struct takes, and zeros behind it.
// REQUIRES: CheckFillable(result).
template <class Struct>
void FillStruct(Struct value, Struct* result) {
  const size_t size = result->struct_size;
  value.struct_size = size;
  std::memcpy(result, &value, std::min(size, sizeof(Struct)));
  auto* bytes = reinterpret_cast<unsigned char*>(result);
  if (size > sizeof(Struct)) std::fill(bytes + sizeof(Struct), bytes + size, 0);
}

}  // namespace eplb::c

#endif  // EPLB_CLIENT_C_STRUCTS_H_
