-- Health of an LLMDeployment, from the conditions that kstatus reads too.
--
-- Ready=False is Progressing and never Degraded: it holds through every rollout and while GPUs are
-- awaited, and a Degraded resource ends a sync. Only Stalled asks for a change by somebody.
-- ScaledToZero is Healthy, as a Deployment of no replicas is: Suspended means paused, and a sync
-- wave would wait for it for ever although nothing is left to do.
--
-- Only Lua's base library is used: Argo CD loads neither string nor math unless told to.
local health = { status = "Progressing", message = "Waiting for the operator to see this object" }
local status = obj.status
if status == nil or status.observedGeneration == nil then
  return health
end
if status.observedGeneration ~= obj.metadata.generation then
  health.message = "Waiting for the operator to see generation " .. obj.metadata.generation
    .. "; it has seen " .. status.observedGeneration
  return health
end

local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local stalled = conditions["Stalled"]
if stalled ~= nil and stalled.status == "True" then
  return { status = "Degraded", message = stalled.message }
end

local reconciling = conditions["Reconciling"]
if reconciling ~= nil and reconciling.status == "True" then
  return { status = "Progressing", message = reconciling.message }
end

local ready = conditions["Ready"]
if ready == nil then
  health.message = "Waiting for the condition Ready"
  return health
end
if ready.status == "True" then
  return { status = "Healthy", message = ready.message }
end
return { status = "Progressing", message = ready.message }
