// Bandwidths of links as people write them: "450 GB/s", "400Gb/s". threads: safe, no state.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace eplb {

// Which link of a GPU is meant; its usual bandwidths tell whether a number was meant otherwise.
enum class LinkClass { kIntraNode, kInterNode };

inline constexpr char kBandwidthExpected[] =
    "a bandwidth such as 450 GB/s or 400Gb/s (b: bits, B: bytes), or a number of GB/s, in "
    "1e-6..1e6 GB/s";

// Bytes per second of a number with a unit, spaces between them allowed: k, M, G or T, then B
// (bytes), b or bit (bits), then /s or ps. A number alone is GB/s, as in --link-gbps.
// errors: InvalidArgument, without the place: kBandwidthExpected.
absl::StatusOr<double> ParseBandwidth(std::string_view text);

// "450 GB/s", with as many digits as ParseBandwidth needs to read the same value.
std::string BandwidthText(double bytes_per_s);

// One sentence when `text` is a number without a unit that is more probably Gb/s; empty otherwise.
// A GPU's links inside a node carry at most 1800 GB/s in one direction (NVLink 6), and 100, 200,
// 400, 800 and 1600 are what NICs are called by in Gb/s.
std::string BandwidthNote(std::string_view text, LinkClass link);

}  // namespace eplb
