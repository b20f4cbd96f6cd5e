// A state of everything in three words. The numbers that stand for its parts have fixed widths: who
// explores asks WhyNotPacked whether they still fit, since a number that is cut off would make two
// states one.
#pragma once

#include <cstdint>
#include <string>

#include "tests/simulation/explorer/visited.h"
#include "tests/simulation/explorer/world.h"

namespace eplb::explorer {

Packed Pack(const World& world);
// bounds: those of the start.
World Unpack(const Packed& packed, const Bounds& bounds);
// All that is left but chunks, as one number.
uint64_t LeftBitsOf(const Packed& packed);

// Empty while every state that the model has met keeps its number in Pack.
std::string WhyNotPacked(const Model& model);
// Empty where Pack keeps the bounds of this start.
std::string WhyNotPacked(const World& start);

}  // namespace eplb::explorer
