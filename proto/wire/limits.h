// The largest job that a daemon takes, and the sizes of messages that follow from it: whatever
// Hello is welcomed, its reports and its placements fit.
#ifndef EPLB_PROTO_WIRE_LIMITS_H_
#define EPLB_PROTO_WIRE_LIMITS_H_

#include <cstdint>

namespace eplb::wire {

// Layers times slots of a job: four times 128 layers of 2048 slots. A layer has at most as many
// experts as slots, so this bounds the cells of a load as well.
inline constexpr int64_t kMaxSlotsOfAllLayers = int64_t{1} << 20;
inline constexpr int64_t kMaxLayers = int64_t{1} << 16;

// Counts of one report, those of its parts included: all cells as u64. A rank whose parts need more
// says that they are unknown.
inline constexpr int64_t kMaxReportBytes = kMaxSlotsOfAllLayers * int64_t{sizeof(uint64_t)};

// A placement has an expert and a rank for each slot, of 21 bits with their sign and so of 3 bytes
// each, and for each layer its number and 4 lengths and tags.
inline constexpr int64_t kMaxPlacementBytes = kMaxSlotsOfAllLayers * 6 + kMaxLayers * 24;
static_assert(kMaxPlacementBytes <= kMaxReportBytes);

// All else in a message: names, numbers, sentences, a job's memory, the numbers of model layers.
inline constexpr int64_t kMaxRestBytes = int64_t{1} << 20;
inline constexpr int64_t kMaxMessageBytes = kMaxReportBytes + kMaxRestBytes;

}  // namespace eplb::wire

#endif  // EPLB_PROTO_WIRE_LIMITS_H_
