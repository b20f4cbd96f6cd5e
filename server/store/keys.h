// Names of the store's keys; see Store.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace eplb {

inline constexpr char kSchemaKey[] = "schema";
inline constexpr int64_t kKeysSchema = 1;  // its value: the schema of keys and rows of this eplbd
inline constexpr char kTermKey[] = "term";
inline constexpr char kMovedAsideKey[] = "moved_aside";
inline constexpr char kJobKeys[] = "job/";
inline constexpr char kEventKeys[] = "event/";
inline constexpr char kWindowKeys[] = "window/";
inline constexpr char kTypicalLoadKeys[] = "typical_loads/";

// Returns the prefix with a number of 16 digits, so that keys sort by number.
inline std::string Numbered(std::string_view prefix, int64_t number) {
  return absl::StrCat(std::string(prefix), absl::StrFormat("%016x", number));
}
// Returns the number at the end of a key; 0 if there is none.
inline int64_t NumberOf(const std::string& key) {
  int64_t number = 0;
  return absl::SimpleHexAtoi(key.substr(key.rfind('/') + 1), &number) ? number : 0;
}
inline std::string JobKey(const std::string& job, std::string_view rest) {
  return absl::StrCat(kJobKeys, job, "/", std::string(rest));
}
inline std::string EventsKey(const std::string& job, bool of_operators) {
  return absl::StrCat(kEventKeys, job, of_operators ? "/o/" : "/d/");
}
inline std::string WindowsKey(const std::string& job) {
  return absl::StrCat(kWindowKeys, job, "/");
}
inline std::string TypicalLoadsKey(const std::string& job) {
  return absl::StrCat(kTypicalLoadKeys, job, "/");
}
// part: one of the parts in which a large value is kept, from 0.
inline std::string PartKey(std::string_view prefix, int64_t written, size_t part) {
  return absl::StrCat(Numbered(prefix, written), absl::StrFormat("/%04x", part));
}

}  // namespace eplb
