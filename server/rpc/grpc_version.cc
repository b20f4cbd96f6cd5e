#include "server/rpc/grpc_version.h"

#include <array>
#include <cstdint>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include <grpcpp/grpcpp.h>

namespace eplb {
namespace {

constexpr std::array<int32_t, 3> kMended = {1, 56, 2};

}  // namespace

std::string GrpcVersion() { return grpc::Version(); }

std::string GrpcAdvisory(std::string_view version) {
  // A suffix such as "-dev" is no part of the numbers.
  const std::string_view numbers = version.substr(0, version.find_first_not_of("0123456789."));
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(numbers.data(), numbers.size()), '.');
  std::array<int32_t, 3> found = {};
  if (parts.size() != found.size()) return "";
  for (size_t i = 0; i < found.size(); ++i) {
    if (!absl::SimpleAtoi(parts[i], &found[i])) return "";
  }
  if (found >= kMended) return "";
  return absl::StrCat(
      "gRPC ", absl::string_view(version.data(), version.size()),
      " is of a time before known faults that a peer can use were mended (CVE-2023-1428, "
      "CVE-2023-32731, CVE-2023-33953, CVE-2023-4785), unless its builder mended them; let only "
      "trusted machines reach this address, or use a build on gRPC 1.56.2 or newer");
}

}  // namespace eplb
