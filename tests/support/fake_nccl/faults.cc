#include "tests/support/fake_nccl/faults.h"

#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>

namespace eplb::fake_nccl {
namespace {

const std::map<std::string_view, FaultKind>& Kinds() {
  static const auto& kinds =
      *new std::map<std::string_view, FaultKind>{{"delay", FaultKind::kDelay},
                                                 {"async_error", FaultKind::kAsyncError},
                                                 {"die", FaultKind::kDie},
                                                 {"corrupt", FaultKind::kCorrupt},
                                                 {"hang", FaultKind::kHang},
                                                 {"slow_abort", FaultKind::kSlowAbort},
                                                 {"abort_error", FaultKind::kAbortError},
                                                 {"init_error", FaultKind::kInitError},
                                                 {"init_async_error", FaultKind::kInitAsyncError},
                                                 {"init_hang", FaultKind::kInitHang},
                                                 {"register_error", FaultKind::kRegisterError},
                                                 {"mem_error", FaultKind::kMemError}};
  return kinds;
}

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\n");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

// Cuts the part before the next `separator` off.
std::string_view CutFirst(std::string_view& text, char separator) {
  const std::string_view first = text.substr(0, text.find(separator));
  text.remove_prefix(first.size() == text.size() ? first.size() : first.size() + 1);
  return Trim(first);
}

template <class Number>
bool ParseNumber(std::string_view text, Number& number) {
  int32_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < 0) return false;
  number = value;
  return true;
}

bool ParseField(std::string_view field, Fault& fault, bool& has_kind) {
  const std::string_view name = CutFirst(field, '=');
  const std::string_view value = Trim(field);
  if (name == "rank") return ParseNumber(value, fault.rank);
  if (name == "group") return ParseNumber(value, fault.group);
  if (name == "ms") return ParseNumber(value, fault.ms);
  if (name == "code") return ParseNumber(value, fault.code);
  const auto kind = Kinds().find(value);
  if (name != "kind" || kind == Kinds().end()) return false;
  fault.kind = kind->second;
  has_kind = true;
  return true;
}

struct Setting {
  std::mutex mutex;
  std::optional<std::string> text;  // absent: the variable's
};

Setting& TheSetting() {
  static auto& setting = *new Setting();
  return setting;
}

}  // namespace

std::optional<std::vector<Fault>> ParseFaults(std::string_view text, std::string* error) {
  std::vector<Fault> faults;
  while (!text.empty()) {
    const std::string_view whole = CutFirst(text, ';');
    if (whole.empty()) continue;
    Fault fault;
    bool has_kind = false;
    for (std::string_view rest = whole; !rest.empty();) {
      const std::string_view field = CutFirst(rest, ',');
      if (ParseField(field, fault, has_kind)) continue;
      *error = "fault \"" + std::string(whole) + "\": cannot read \"" + std::string(field) + "\"";
      return std::nullopt;
    }
    if (!has_kind) {
      *error = "fault \"" + std::string(whole) + "\" has no kind";
      return std::nullopt;
    }
    faults.push_back(fault);
  }
  return faults;
}

bool SetFaults(const char* text, std::string* error) {
  if (text != nullptr && !ParseFaults(text, error)) return false;
  const std::lock_guard<std::mutex> lock(TheSetting().mutex);
  TheSetting().text.reset();
  if (text != nullptr) TheSetting().text = text;
  return true;
}

std::optional<std::vector<Fault>> CurrentFaults(std::string* error) {
  const std::lock_guard<std::mutex> lock(TheSetting().mutex);
  if (TheSetting().text) return ParseFaults(*TheSetting().text, error);
  const char* variable = std::getenv("EPLB_FAKE_NCCL_FAULTS");
  return ParseFaults(variable != nullptr ? variable : "", error);
}

std::optional<Fault> FaultOf(const std::vector<Fault>& faults, int32_t rank, FaultKind kind) {
  for (const Fault& fault : faults) {
    if (fault.kind == kind && fault.rank.value_or(rank) == rank) return fault;
  }
  return std::nullopt;
}

std::vector<Fault> FaultsOf(const std::vector<Fault>& faults, int32_t rank, int64_t group) {
  std::vector<Fault> meeting;
  for (const Fault& fault : faults) {
    if (fault.rank.value_or(rank) == rank && fault.group.value_or(group) == group) {
      meeting.push_back(fault);
    }
  }
  return meeting;
}

}  // namespace eplb::fake_nccl
