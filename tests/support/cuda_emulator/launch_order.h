// Order of launches: which earlier launches may still run while a programmatic dependent one does.
//
// The emulator runs launches one after the other. The race detector takes a programmatic dependent
// launch and its predecessor as unordered until the dependent's threads wait for the predecessor.
// Launches on different streams count as ordered.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <cuda_runtime_api.h>

namespace eplb::cuda_emulator {

// Returns the serial number of the launch's first block; the others follow it.
uint32_t BeginLaunch(std::string_view kernel, cudaStream_t stream, bool programmatic,
                     uint32_t num_blocks);
// Notes that a thread of the current launch waited for its predecessors.
void NoteWait();
// The next launch of the stream follows other work, so it has no programmatic predecessor.
void EndSequence(cudaStream_t stream);

bool IsOfEarlierLaunch(uint32_t block);
// REQUIRES: IsOfEarlierLaunch(block). waited: as of cudaGridDependencySynchronize.
bool MayStillRun(uint32_t block, bool waited);

// Name of the kernel that ran this block, and the block's index in the grid.
std::string NameOfBlock(uint32_t block);

}  // namespace eplb::cuda_emulator
