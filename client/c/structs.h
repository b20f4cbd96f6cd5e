// Structs of the ABI carry their size, because a caller compiled against another version of eplb.h
// has a shorter or a longer one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/c/call.h"
#include "client/c/eplb.h"

namespace eplb::c {

// Least size of a caller's struct. A struct that grows keeps the size of its first release, by a
// specialization.
template <class Struct>
inline constexpr size_t kFirstSize = sizeof(Struct);
template <>
inline constexpr size_t kFirstSize<eplb_client_options> = offsetof(eplb_client_options, ahead);

// No struct will ever be longer, so a struct_size that was never set is found before its bytes are
// read.
inline constexpr size_t kMaxStructSize = 4096;

// errors: InvalidArgument, naming the argument, for a struct_size that no version of eplb.h has.
template <class Struct>
absl::Status CheckStructSize(const char* name, size_t struct_size) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  static_assert(kFirstSize<Struct> >= sizeof(size_t) && kFirstSize<Struct> <= sizeof(Struct));
  if (struct_size >= kFirstSize<Struct> && struct_size <= kMaxStructSize) return absl::OkStatus();
  return InvalidInput(name, ".struct_size is ", struct_size, ", expected sizeof, which is ",
                      sizeof(Struct), " in this library");
}

// Returns the caller's struct, with `defaults` for fields that it is too short for. errors:
// InvalidArgument, naming the argument: NULL, a wrong struct_size, or a field that is not 0 and
// that this library does not have.
template <class Struct>
absl::StatusOr<Struct> ReadStruct(const char* name, const Struct* given, Struct defaults = {}) {
  if (given == nullptr) return InvalidInput(name, " is NULL");
  EPLB_RETURN_IF_ERROR(CheckStructSize<Struct>(name, given->struct_size));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  const size_t size = given->struct_size;
  if (size > sizeof(Struct) &&
      std::any_of(bytes + sizeof(Struct), bytes + size, [](unsigned char b) { return b != 0; })) {
    return InvalidInput(
        name, " sets a field that this library, ", eplb_version(),
        ", does not know: it is older than the eplb.h that the program is made with");
  }
  std::memcpy(&defaults, given, std::min(size, sizeof(Struct)));
  return defaults;
}

// errors: InvalidArgument, naming the argument: NULL or a wrong struct_size.
template <class Struct>
absl::Status CheckFillable(const char* name, const Struct* result) {
  if (result == nullptr) return InvalidInput(name, " is NULL");
  return CheckStructSize<Struct>(name, result->struct_size);
}

// Writes as much of `value` as the caller's struct takes, followed by zeros.
// REQUIRES: CheckFillable(result).
template <class Struct>
void FillStruct(Struct value, Struct* result) {
  const size_t size = result->struct_size;
  value.struct_size = size;
  std::memcpy(result, &value, std::min(size, sizeof(Struct)));
  auto* bytes = reinterpret_cast<unsigned char*>(result);
  if (size > sizeof(Struct)) std::fill(bytes + sizeof(Struct), bytes + size, 0);
}

// Fills in the defaults of options. struct_size: as the caller's header has it.
template <class Struct>
int32_t InitStruct(const Struct& defaults, Struct* options, size_t struct_size) noexcept {
  return CatchAll([&]() -> absl::Status {
    if (options == nullptr) return InvalidInput("options is NULL");
    EPLB_RETURN_IF_ERROR(CheckStructSize<Struct>("options", struct_size));
    options->struct_size = struct_size;
    FillStruct(defaults, options);
    return absl::OkStatus();
  });
}

// Reads an array whose structs have the size that the caller's header gives them. read: (name of
// the entry, Struct) -> StatusOr<Value>. errors: InvalidArgument naming `array` or the entry.
template <class Value, class Struct, class Read>
absl::StatusOr<std::vector<Value>> ReadArray(const std::string& array, const Struct* first,
                                             size_t count, const Read& read) {
  std::vector<Value> values;
  if (count == 0) return values;
  if (first == nullptr) return InvalidInput(array, " is NULL");
  const size_t size = first->struct_size;
  for (size_t i = 0; i < count; ++i) {
    const std::string name = absl::StrCat(array, "[", i, "]");
    const auto* given =
        reinterpret_cast<const Struct*>(reinterpret_cast<const unsigned char*>(first) + i * size);
    EPLB_ASSIGN_OR_RETURN(const Struct known, ReadStruct(name.c_str(), given));
    if (known.struct_size != size) {
      return InvalidInput(name, ".struct_size is ", known.struct_size, ", that of ", array,
                          "[0] is ", size);
    }
    EPLB_ASSIGN_OR_RETURN(Value value, read(name, known));
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace eplb::c
