// Commands of eplbctl that have no other header. Each adds itself with its flags.
#pragma once

#include "client/cli/command_tree.h"

namespace eplb::cli {

void AddPlan(const Flags& root);
void AddReplay(const Flags& root);
void AddSweep(const Flags& root);
void AddLint(const Flags& root);
void AddConvert(const Flags& root);
void AddJoin(const Flags& root);
void AddExplain(const Flags& root);
void AddWait(const Flags& root);
void AddContext(const Flags& root);

// Commands about the tree of commands itself.
void AddHelp(const Flags& root, const CommandTree& tree);
void AddCompletion(const Flags& root, const CommandTree& tree);
void AddMan(const Flags& root, const CommandTree& tree);

}  // namespace eplb::cli
