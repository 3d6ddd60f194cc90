# Confirms on a real Windows node what tests could not see: run it as an administrator while ferroxy runs there. It reads only,
# except with -Change, which creates and deletes one load balancer at an address for documentation.
#
#   .\confirm.ps1 [-Network cbr0] [-Service 10.96.0.10:53] [-Change]
param(
    [string]$Network = $(if ($env:KUBE_NETWORK) { $env:KUBE_NETWORK } else { "cbr0" }),
    [string]$Service = "",
    [switch]$Change
)
$ErrorActionPreference = "Stop"
$failed = 0
function Check([string]$What, [bool]$IsTrue, [string]$Detail = "") {
    if (-not $IsTrue) { $script:failed++ }
    "{0,-6} {1} {2}" -f $(if ($IsTrue) { "ok" } else { "FAILED" }), $What, $Detail
}

Import-Module HNS -ErrorAction SilentlyContinue
if (-not (Get-Command Get-HnsNetwork -ErrorAction SilentlyContinue)) {
    throw "the HNS module is missing: install the feature Containers, or copy hns.psm1 of Microsoft/SDN"
}
$version = (Get-HnsGlobal -ErrorAction SilentlyContinue).Version
"HNS version: $($version.Major).$($version.Minor); Windows: $([Environment]::OSVersion.Version)"

$found = Get-HnsNetwork | Where-Object { $_.Name -eq $Network }
Check "the network $Network exists" ($null -ne $found) "($($found.Type))"

$ours = @(Get-HnsPolicyList | Where-Object { $_.Owner -eq "ferroxy" })
$all = @(Get-HnsPolicyList)
Check "HNS keeps the owner of load balancers" ($ours.Count -gt 0) "($($ours.Count) of $($all.Count) are ours)"

$endpoints = @(Get-HnsEndpoint | Where-Object { $_.VirtualNetwork -eq $found.ID })
$remote = @($endpoints | Where-Object { $_.IsRemoteEndpoint })
Check "remote endpoints exist" ($remote.Count -gt 0) "($($remote.Count))"

$known = @{}
$endpoints | ForEach-Object { $known[$_.ID.ToUpper()] = $true }
$dangling = @($ours | ForEach-Object { $_.References } | Where-Object { $_ -match "/endpoints/(.+)$" -and -not $known[$Matches[1].ToUpper()] })
Check "no load balancer of ours names an endpoint that is gone" ($dangling.Count -eq 0) "($($dangling.Count) do)"

$range = netsh int ipv4 show dynamicportrange tcp | Select-String "Start Port\s*:\s*(\d+)"
$start = [int]$range.Matches[0].Groups[1].Value
Check "dynamic ports do not overlap node ports" ($start -gt 32767) "(they start at ${start}: netsh int ipv4 set dynamicportrange tcp 49152 16384)"

if ($Service) {
    $address, $port = $Service -split ":(?=\d+$)"
    $answers = Test-NetConnection -ComputerName $address -Port $port -InformationLevel Quiet -WarningAction SilentlyContinue
    Check "the Service $Service answers" $answers
}

if ($Change) {
    # Does HNS keep an id that the caller chooses? Is an id free at once after its object was deleted?
    $id = "7A1E0C6E-0000-8000-8000-000000000001"
    $body = @{ Owner = "ferroxy-confirm"; ID = $id; References = @("/endpoints/$($endpoints[0].ID)")
        Policies = @(@{ Type = "ELB"; VIPs = @("198.51.100.1"); ExternalPort = 9; InternalPort = 9; Protocol = 6 }) }
    foreach ($round in 1, 2) {
        $made = Invoke-HnsRequest -Method POST -Type policylists -Data ($body | ConvertTo-Json -Depth 5)
        Check "round ${round}: the id of a load balancer is kept" ($made.ID -eq $id) "($($made.ID))"
        Invoke-HnsRequest -Method DELETE -Type policylists -Id $made.ID | Out-Null
    }
}
"$failed checks failed"
exit $failed
