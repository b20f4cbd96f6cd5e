// A value of the configuration, read as its key needs it.
#ifndef EPLB_SERVER_CONFIG_CONFIG_VALUES_H_
#define EPLB_SERVER_CONFIG_CONFIG_VALUES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "server/process/socket.h"

namespace eplb {

inline constexpr size_t kMaxHostNames = 64;

struct ConfigValue {
  enum class Kind { kInteger, kReal, kText, kTexts, kUntyped, kOther };
  Kind kind = Kind::kUntyped;  // kUntyped: from the environment or a flag, read as the key needs it
  std::string text = {};       // as messages show it, too
  std::vector<std::string> texts = {};  // of kTexts: an array of strings
};

// Each is false, or without a value, when `value` is of another kind or outside low..high; `out`
// may have changed then.
std::optional<int64_t> Integer(const ConfigValue& value, int64_t low, int64_t high);
bool SetInteger(const ConfigValue& value, int64_t low, int64_t high, int32_t* out);
bool SetReal(const ConfigValue& value, double low, double high, double* out);
// A bandwidth as ParseBandwidth reads it, in bytes per second.
bool SetBandwidth(const ConfigValue& value, double* out);
// `value` times `scale`.
bool SetScaled(const ConfigValue& value, double low, double high, double scale, double* out);
bool SetDuration(const ConfigValue& value, absl::Duration low, absl::Duration high,
                 absl::Duration* out);
bool SetAddress(const ConfigValue& value, bool unix_allowed, Address* out);
bool SetPath(const ConfigValue& value, std::string* out);
// An array, or one text with commas between the names; at most kMaxHostNames of letters, digits,
// and . - _, without a port.
bool SetHostNames(const ConfigValue& value, std::vector<std::string>* out);

// What the functions above read back as this value.
std::string ValueText(int32_t value);
std::string ValueText(int64_t value);
std::string ValueText(double value);  // the shortest
std::string ValueText(absl::Duration value);
std::string ValueText(const Address& value);
std::string ValueText(const std::string& value);
std::string ValueText(const std::vector<std::string>& names);

}  // namespace eplb

#endif  // EPLB_SERVER_CONFIG_CONFIG_VALUES_H_
