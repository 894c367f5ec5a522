from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TopologyLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NUMA: _ClassVar[TopologyLevel]
    SOCKET: _ClassVar[TopologyLevel]
NUMA: TopologyLevel
SOCKET: TopologyLevel

class ListPodResourcesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPodResourcesResponse(_message.Message):
    __slots__ = ("pod_resources",)
    POD_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    pod_resources: _containers.RepeatedCompositeFieldContainer[PodResources]
    def __init__(self, pod_resources: _Optional[_Iterable[_Union[PodResources, _Mapping]]] = ...) -> None: ...

class AllocatableResourcesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AllocatableResourcesResponse(_message.Message):
    __slots__ = ("devices", "cpu_ids", "memory", "resources")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CPU_IDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[ContainerDevices]
    cpu_ids: _containers.RepeatedScalarFieldContainer[int]
    memory: _containers.RepeatedCompositeFieldContainer[ContainerMemory]
    resources: _containers.RepeatedCompositeFieldContainer[AllocatableTopologyAwareResource]
    def __init__(self, devices: _Optional[_Iterable[_Union[ContainerDevices, _Mapping]]] = ..., cpu_ids: _Optional[_Iterable[int]] = ..., memory: _Optional[_Iterable[_Union[ContainerMemory, _Mapping]]] = ..., resources: _Optional[_Iterable[_Union[AllocatableTopologyAwareResource, _Mapping]]] = ...) -> None: ...

class PodResources(_message.Message):
    __slots__ = ("name", "namespace", "containers", "pod_role", "pod_type", "labels", "annotations")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class AnnotationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    POD_ROLE_FIELD_NUMBER: _ClassVar[int]
    POD_TYPE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ANNOTATIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    containers: _containers.RepeatedCompositeFieldContainer[ContainerResources]
    pod_role: str
    pod_type: str
    labels: _containers.ScalarMap[str, str]
    annotations: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., containers: _Optional[_Iterable[_Union[ContainerResources, _Mapping]]] = ..., pod_role: _Optional[str] = ..., pod_type: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., annotations: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ContainerResources(_message.Message):
    __slots__ = ("name", "devices", "cpu_ids", "memory", "resources")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CPU_IDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    name: str
    devices: _containers.RepeatedCompositeFieldContainer[ContainerDevices]
    cpu_ids: _containers.RepeatedScalarFieldContainer[int]
    memory: _containers.RepeatedCompositeFieldContainer[ContainerMemory]
    resources: _containers.RepeatedCompositeFieldContainer[TopologyAwareResource]
    def __init__(self, name: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[ContainerDevices, _Mapping]]] = ..., cpu_ids: _Optional[_Iterable[int]] = ..., memory: _Optional[_Iterable[_Union[ContainerMemory, _Mapping]]] = ..., resources: _Optional[_Iterable[_Union[TopologyAwareResource, _Mapping]]] = ...) -> None: ...

class TopologyAwareResource(_message.Message):
    __slots__ = ("resource_name", "is_node_resource", "is_scalar_resource", "aggregated_quantity", "original_aggregated_quantity", "topology_aware_quantity_list", "original_topology_aware_quantity_list")
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    IS_NODE_RESOURCE_FIELD_NUMBER: _ClassVar[int]
    IS_SCALAR_RESOURCE_FIELD_NUMBER: _ClassVar[int]
    AGGREGATED_QUANTITY_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_AGGREGATED_QUANTITY_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_AWARE_QUANTITY_LIST_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_TOPOLOGY_AWARE_QUANTITY_LIST_FIELD_NUMBER: _ClassVar[int]
    resource_name: str
    is_node_resource: bool
    is_scalar_resource: bool
    aggregated_quantity: float
    original_aggregated_quantity: float
    topology_aware_quantity_list: _containers.RepeatedCompositeFieldContainer[TopologyAwareQuantity]
    original_topology_aware_quantity_list: _containers.RepeatedCompositeFieldContainer[TopologyAwareQuantity]
    def __init__(self, resource_name: _Optional[str] = ..., is_node_resource: bool = ..., is_scalar_resource: bool = ..., aggregated_quantity: _Optional[float] = ..., original_aggregated_quantity: _Optional[float] = ..., topology_aware_quantity_list: _Optional[_Iterable[_Union[TopologyAwareQuantity, _Mapping]]] = ..., original_topology_aware_quantity_list: _Optional[_Iterable[_Union[TopologyAwareQuantity, _Mapping]]] = ...) -> None: ...

class AllocatableTopologyAwareResource(_message.Message):
    __slots__ = ("resource_name", "is_node_resource", "is_scalar_resource", "aggregated_allocatable_quantity", "topology_aware_allocatable_quantity_list", "aggregated_capacity_quantity", "topology_aware_capacity_quantity_list")
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    IS_NODE_RESOURCE_FIELD_NUMBER: _ClassVar[int]
    IS_SCALAR_RESOURCE_FIELD_NUMBER: _ClassVar[int]
    AGGREGATED_ALLOCATABLE_QUANTITY_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_AWARE_ALLOCATABLE_QUANTITY_LIST_FIELD_NUMBER: _ClassVar[int]
    AGGREGATED_CAPACITY_QUANTITY_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_AWARE_CAPACITY_QUANTITY_LIST_FIELD_NUMBER: _ClassVar[int]
    resource_name: str
    is_node_resource: bool
    is_scalar_resource: bool
    aggregated_allocatable_quantity: float
    topology_aware_allocatable_quantity_list: _containers.RepeatedCompositeFieldContainer[TopologyAwareQuantity]
    aggregated_capacity_quantity: float
    topology_aware_capacity_quantity_list: _containers.RepeatedCompositeFieldContainer[TopologyAwareQuantity]
    def __init__(self, resource_name: _Optional[str] = ..., is_node_resource: bool = ..., is_scalar_resource: bool = ..., aggregated_allocatable_quantity: _Optional[float] = ..., topology_aware_allocatable_quantity_list: _Optional[_Iterable[_Union[TopologyAwareQuantity, _Mapping]]] = ..., aggregated_capacity_quantity: _Optional[float] = ..., topology_aware_capacity_quantity_list: _Optional[_Iterable[_Union[TopologyAwareQuantity, _Mapping]]] = ...) -> None: ...

class TopologyAwareQuantity(_message.Message):
    __slots__ = ("resource_value", "node", "name", "type", "topology_level", "annotations")
    class AnnotationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RESOURCE_VALUE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    ANNOTATIONS_FIELD_NUMBER: _ClassVar[int]
    resource_value: float
    node: int
    name: str
    type: str
    topology_level: TopologyLevel
    annotations: _containers.ScalarMap[str, str]
    def __init__(self, resource_value: _Optional[float] = ..., node: _Optional[int] = ..., name: _Optional[str] = ..., type: _Optional[str] = ..., topology_level: _Optional[_Union[TopologyLevel, str]] = ..., annotations: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ContainerMemory(_message.Message):
    __slots__ = ("memory_type", "size", "topology")
    MEMORY_TYPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    memory_type: str
    size: int
    topology: TopologyInfo
    def __init__(self, memory_type: _Optional[str] = ..., size: _Optional[int] = ..., topology: _Optional[_Union[TopologyInfo, _Mapping]] = ...) -> None: ...

class ContainerDevices(_message.Message):
    __slots__ = ("resource_name", "device_ids", "topology")
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_IDS_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    resource_name: str
    device_ids: _containers.RepeatedScalarFieldContainer[str]
    topology: TopologyInfo
    def __init__(self, resource_name: _Optional[str] = ..., device_ids: _Optional[_Iterable[str]] = ..., topology: _Optional[_Union[TopologyInfo, _Mapping]] = ...) -> None: ...

class TopologyInfo(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NUMANode]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NUMANode, _Mapping]]] = ...) -> None: ...

class NUMANode(_message.Message):
    __slots__ = ("ID",)
    ID_FIELD_NUMBER: _ClassVar[int]
    ID: int
    def __init__(self, ID: _Optional[int] = ...) -> None: ...
