#include "client/cli/convert.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "client/files/atomic_write.h"
#include "client/files/formats/format_table.h"
#include "placement/status_macros.h"

namespace eplb::cli {
namespace {

constexpr int32_t kMaxLayer = 1 << 20;

absl::StatusOr<Conversion> Convert(const ConversionOptions& options) {
  const int32_t first_layer = options.flags.first_layer.value_or(0);
  if (first_layer < 0 || first_layer > kMaxLayer) {
    return absl::InvalidArgumentError(
        absl::StrCat("--first-layer is ", first_layer, ", expected 0..", kMaxLayer));
  }
  return ConvertPlacementFile(options);
}

}  // namespace

std::vector<std::string> ConvertFormatNames() {
  std::vector<std::string> names;
  for (const PlacementFormat& format : PlacementFormats()) names.emplace_back(format.name);
  return names;
}

Output RunConvert(const ConversionOptions& options) {
  const absl::StatusOr<Conversion> conversion = Convert(options);
  if (!conversion.ok()) return UsageFailure(conversion.status());
  const absl::Status written = WriteFileAtomically(options.out, conversion->bytes);
  if (!written.ok()) return Failure(kError, written);
  Output output;
  if (!conversion->notes.empty()) {
    output.message = absl::StrCat(options.out, ": ", absl::StrJoin(conversion->notes, "; "));
  }
  return output;
}

}  // namespace eplb::cli
