// The commands of eplbctl. Each is declared with its flags in the file of its name.
#ifndef EPLB_CLIENT_CLI_COMMANDS_H_
#define EPLB_CLIENT_CLI_COMMANDS_H_

#include "client/cli/command_tree.h"

namespace eplb::cli {

void AddPlan(const Flags& root);
void AddReplay(const Flags& root);
void AddSweep(const Flags& root);
void AddLint(const Flags& root);
void AddConvert(const Flags& root);
void AddReport(const Flags& root);
void AddStatus(const Flags& root);
void AddGet(const Flags& root);
void AddExplain(const Flags& root);
void AddDiff(const Flags& root);
void AddTop(const Flags& root);
void AddDoctor(const Flags& root);
void AddWait(const Flags& root);
void AddRebalance(const Flags& root);
void AddPause(const Flags& root);
void AddResume(const Flags& root);
void AddRollback(const Flags& root);
void AddSet(const Flags& root);
void AddForget(const Flags& root);
void AddContext(const Flags& root);

// Commands about the tree of commands itself.
void AddHelp(const Flags& root, const CommandTree& tree);
void AddCompletion(const Flags& root, const CommandTree& tree);
void AddMan(const Flags& root, const CommandTree& tree);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_COMMANDS_H_
