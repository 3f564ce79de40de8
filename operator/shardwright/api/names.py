"""Every name that other programs can see: group, kinds, labels, annotations, field managers.

Names are API: dashboards, `kubectl -l` and other controllers rely on them, so they stand in one
place and are never assembled elsewhere.
"""

from __future__ import annotations

GROUP = "shardwright.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "LLMDeployment"
PLURAL = "llmdeployments"
SINGULAR = "llmdeployment"
SHORT_NAME = "llmd"
CATEGORY = "llm"

# Labels of every pod (and, where they apply, of Jobs, Services and records).
LABEL_DEPLOYMENT = f"{GROUP}/deployment"
LABEL_REPLICA = f"{GROUP}/replica"
LABEL_STAGE = f"{GROUP}/stage"
LABEL_INCARNATION = f"{GROUP}/incarnation"
LABEL_REVISION = f"{GROUP}/revision"
LABEL_ROLE = f"{GROUP}/role"
# On all pods of a group that serves: the disruption budget selects it.
LABEL_PROTECTED = f"{GROUP}/protected"
# On the leader of a group that serves: the Service selects it.
LABEL_SERVING = f"{GROUP}/serving"
# On step Jobs, their pods, and records.
LABEL_STEP = f"{GROUP}/step"
LABEL_KEY = f"{GROUP}/key"
LABEL_ATTEMPT = f"{GROUP}/attempt"
# Which attempt made the artifact that a step works on: a damaged one is withdrawn only once.
LABEL_SOURCE_ATTEMPT = f"{GROUP}/source-attempt"
# Of what is read beside the source, in order, joined by dots.
LABEL_ALSO_ATTEMPTS = f"{GROUP}/also-attempts"
LABEL_RECORD = f"{GROUP}/record"
LABEL_CLAIM_UID = f"{GROUP}/claim-uid"
LABEL_RUNNER = f"{GROUP}/runner"
# On the ConfigMap that tells a deployment's leaders which adapters to load.
LABEL_ADAPTERS = f"{GROUP}/adapters"
# Set by an administrator on a Node: how many of its GPUs share one NVLink domain, where labels and
# the table of products cannot tell (bridged PCIe boards, a GPU off its fabric).
LABEL_NVLINK_SIZE = f"{GROUP}/nvlink-size"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "shardwright"

ROLE_LEADER = "leader"
ROLE_WORKER = "worker"

# The whole replica's placement, on each of its pods, so that a successor can finish or release it.
ANNOTATION_PLACEMENT = f"{GROUP}/placement"
# On a leader's pod: which table of adapters it was last told of. A changed annotation has the
# kubelet look at the pod's volumes at once.
ANNOTATION_ADAPTERS = f"{GROUP}/adapters"
# Set by a user on the LLMDeployment: one rolling restart, restart budgets anew.
ANNOTATION_RESTARTED_AT = f"{GROUP}/restartedAt"

SCHEDULING_GATE = f"{GROUP}/placement"

# One writer a field: children and status under names of their own.
MANAGER_CHILDREN = "shardwright"
MANAGER_STATUS = "shardwright-status"
MANAGER_BENCHMARK = "shardwright-benchmark"

HOSTNAME_LABEL = "kubernetes.io/hostname"
GPU_RESOURCE = "nvidia.com/gpu"
PORT_HTTP = 8000
PORT_RUNNER = 8091
PORT_CHANNEL = 8092
