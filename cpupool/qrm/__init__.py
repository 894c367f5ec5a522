"""The QoS Resource Manager: the agent asks plugins which resources containers get.

`question_table` has the conversation: each question, the state that it is in, and what moves it.
Read it first. `resource_manager` is the role, and its thread alone knows the table. A plugin makes
a socket that `plugin_registry` finds, or registers by a call (`registration`); a thread of its own
asks it (`plugin_worker`, by `plugin_client` and `plugin_messages`).

For a container, `plugin_admitter` asks what `next_questions` names: hints first, then what the
container gets by their merger, and to prepare its starts. `answer_book` keeps the answers, and
`bad_answers` has their rules. The record of the answers outlives the agent; `answer_recovery` finds
CPUs that the record lacks, and `answer_import` takes what Katalyst's manager has recorded
(`katalyst_checkpoint`).

Again and again, plugins list what containers have, forget pods, and offer resources for the node's
status (`plugin_rounds`, `node_resources`, `node_resources_writer`). `plugin_reports`,
`plugin_metrics` and `podresources_service` show all that; the last asks plugins itself
(`plugin_inquiry`).
"""
