// Reads and writes lists of GPUs and of their speeds.
#include "proto/wire/gpu_settings.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/quantity.h"
#include "base/status_macros.h"
#include "base/value_range.h"

namespace eplb::wire {
namespace {

constexpr size_t kMaxListText = 2048;  // kMaxNamedGpus numbers, each with a speed
constexpr size_t kMaxShown = 64;
constexpr int32_t kMaxGpu = (1 << 20) - 1;  // largest GPU of a Topology

absl::Status NotAList(std::string_view text, const std::string& expected) {
  return InvalidInput("\"", Clipped(std::string(text), kMaxShown), "\": expected ", expected);
}

// Splits a list. errors: InvalidArgument if it is too long.
absl::StatusOr<std::vector<std::string>> Entries(std::string_view text,
                                                 const std::string& expected) {
  if (text.empty() || text == kNoGpu) return std::vector<std::string>();
  if (text.size() > kMaxListText) return NotAList(text, expected);
  std::vector<std::string> entries = absl::StrSplit(std::string(text), ',');
  if (entries.size() > kMaxNamedGpus) return NotAList(text, expected);
  return entries;
}

// Reads a GPU above `before`.
bool ReadGpu(const std::string& text, int32_t before, int32_t* gpu) {
  return !text.empty() && absl::ascii_isdigit(static_cast<unsigned char>(text.front())) &&
         absl::SimpleAtoi(text, gpu) && *gpu > before && *gpu <= kMaxGpu;
}

}  // namespace

absl::StatusOr<std::vector<StatedSpeed>> ParseSpeeds(std::string_view text) {
  const std::string expected = SpeedsExpected();
  EPLB_ASSIGN_OR_RETURN(const std::vector<std::string> entries, Entries(text, expected));
  std::vector<StatedSpeed> speeds;
  for (const std::string& entry : entries) {
    const size_t colon = entry.find(':');
    StatedSpeed one;
    if (colon != std::string::npos) {
      one.speed = ParseFraction(std::string_view(entry).substr(colon + 1)).value_or(0);
    }
    const bool is_read =
        colon != std::string::npos &&
        ReadGpu(entry.substr(0, colon), speeds.empty() ? -1 : speeds.back().gpu, &one.gpu) &&
        one.speed >= kMinStatedSpeed && one.speed <= kMaxStatedSpeed;
    if (!is_read) return NotAList(text, expected);
    speeds.push_back(one);
  }
  return speeds;
}

std::string SpeedsText(const std::vector<StatedSpeed>& speeds) {
  return absl::StrJoin(speeds, ",", [](std::string* out, const StatedSpeed& one) {
    absl::StrAppend(out, one.gpu, ":", ScalarText(one.speed));
  });
}

absl::StatusOr<std::vector<int32_t>> ParseGpus(std::string_view text) {
  EPLB_ASSIGN_OR_RETURN(const std::vector<std::string> entries, Entries(text, kGpusExpected));
  std::vector<int32_t> gpus;
  for (const std::string& entry : entries) {
    int32_t gpu = 0;
    if (!ReadGpu(entry, gpus.empty() ? -1 : gpus.back(), &gpu)) {
      return NotAList(text, kGpusExpected);
    }
    gpus.push_back(gpu);
  }
  return gpus;
}

std::string GpusText(const std::vector<int32_t>& gpus) { return absl::StrJoin(gpus, ","); }

std::string SpeedsExpected() {
  return absl::StrCat("\"GPU:SPEED,..\" with rising GPUs and speeds in ", kMinStatedSpeed, "..",
                      kMaxStatedSpeed, ", or \"none\"");
}

}  // namespace eplb::wire
