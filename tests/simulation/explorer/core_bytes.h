// The bytes of a core's state, and the renaming of its ranks.
#pragma once

#include <optional>
#include <string>

#include "server/core/state/state.h"
#include "tests/simulation/explorer/bytes.h"
#include "tests/simulation/explorer/core_table.h"

namespace eplb::core {

// Opens a core to the tests that explore.
struct CorePeer {
  static State& StateOf(Core& core) { return *core.state_; }
};

}  // namespace eplb::core

namespace eplb::explorer {

// Takes out what cannot change a decision; see CoreTable. carries: ranks carry memories, of which
// the newest counts.
void Simplify(core::State& state, bool carries);
// Simplifies the memory in a store.
void Simplify(wire::JobMemory& memory, bool carries);
// Equal for equal simplified states, and only for these. Does not cover the configuration.
std::string BytesOf(const core::State& state);
// How a run ended, as far as decisions look at it.
void AddEnd(const std::optional<v1::RunEnd>& end, Bytes& bytes);
void Rename(core::State& state, const Permutation& first, const Permutation& second);
CoreInfo InfoOf(const core::State& state);

}  // namespace eplb::explorer
